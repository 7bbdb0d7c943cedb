"""No class name means two things: whoever searches for one finds one."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("engine", "kernels", "sandbox", "train")


def classes(root: Path, packages: tuple[str, ...]) -> dict[str, list[str]]:
    """Where each class is defined, as path:line; of a private one its folder is part of the name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for package in packages for path in sorted((root / package).rglob("*.py"))):
        if "programs" in path.parts:
            continue  # what the sandbox's attacks run, each by itself
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                place = path.relative_to(root)
                name = f"{place.parent}/{node.name}" if node.name.startswith("_") else node.name
                found[name].append(f"{place}:{node.lineno}")
    return found


def twice(root: Path, packages: tuple[str, ...]) -> dict[str, list[str]]:
    return {name: places for name, places in classes(root, packages).items() if len(places) > 1}


def test_no_class_name_is_defined_twice() -> None:
    assert not twice(ROOT, PACKAGES), "one of them needs a name that says what it is of"


def test_what_counts_as_twice(tmp_path: Path) -> None:
    files = {
        "a/one.py": "class Same: ...\nclass _Own: ...\nclass _Part: ...\n",
        "a/two.py": "class Other:\n    class Same: ...\nclass _Part: ...\n",
        "b/three.py": "class _Own: ...\n",
        "b/programs/four.py": "class Other: ...\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert twice(tmp_path, ("a", "b")) == {
        "Same": ["a/one.py:1", "a/two.py:2"],
        "a/_Part": ["a/one.py:3", "a/two.py:3"],
    }
