"""A name is defined once, so that a text search for it finds one thing."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("engine", "kernels", "sandbox", "train")
ALLOWED = Path(__file__).with_name("function_names.txt")
"""Public functions that several rooms still define; the list only shrinks."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def classes(root: Path, packages: tuple[str, ...]) -> dict[str, list[str]]:
    """Where each class is defined, as path:line; of a private one its folder is part of the name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for package in packages for path in sorted((root / package).rglob("*.py"))):
        if "programs" in path.parts:
            continue  # what the sandbox's attacks run, each by itself
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                place = path.relative_to(root)
                name = f"{place.parent}/{node.name}" if node.name.startswith("_") else node.name
                found[name].append(f"{place}:{node.lineno}")
    return found


def twice(root: Path, packages: tuple[str, ...]) -> dict[str, list[str]]:
    return {name: places for name, places in classes(root, packages).items() if len(places) > 1}


def test_no_class_name_is_defined_twice() -> None:
    assert not twice(ROOT, PACKAGES), "one of them needs a name that says what it is of"


def functions(root: Path, packages: tuple[str, ...]) -> dict[str, set[str]]:
    """The rooms that define each public function of a module."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (path for package in packages for path in sorted((root / package).rglob("*.py"))):
        place = path.relative_to(root).with_suffix("").parts
        if "programs" in place:
            continue
        for node in tree(path).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                found[node.name].add("/".join(place[:2]))
    return found


def test_no_function_name_is_defined_in_two_rooms() -> None:
    found = {name: sorted(rooms) for name, rooms in functions(ROOT, PACKAGES).items() if len(rooms) > 1}
    allowed = set(ALLOWED.read_text(encoding="utf-8").split())
    new = {name: rooms for name, rooms in found.items() if name not in allowed}
    assert not new, "one of them needs a name that says what it is of"
    assert not allowed - found.keys(), f"defined once now; remove them from {ALLOWED.name}"
