"""The package's README names its files, all of them, and functions that they have."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "kernels" / "README.md").read_text(encoding="utf-8")
ABSENT = {"__init__.py"}
PACKAGES = {"kernels", "rocstar.kernels"}


def defined(path: Path) -> set[str]:
    """Names at the top of a file."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def rows(text: str) -> dict[str, list[str]]:
    """The file of each row of the table, and what its row names."""
    found = [re.findall(r"`([^`]+)`", line) for line in text.splitlines() if line.startswith("| `")]
    return {name: names for name, *names in found}


def wrong(text: str) -> set[str]:
    """Files and functions that the page names and that are not there, and files that it leaves out."""
    table = rows(text)
    folder = ROOT / "kernels"
    found = {path.name for path in folder.glob("*.py")} - table.keys()
    for name, names in table.items():
        path = ROOT / name if "/" in name else folder / name
        found |= set(names) - defined(path) if path.is_file() else {name}
    elsewhere = set(re.findall(r"`([^`]+)`", text)) - table.keys() - set().union(*table.values())
    return found | (elsewhere - ABSENT - PACKAGES)


def test_the_readme_is_true() -> None:
    assert len(rows(README)) > 10 and not wrong(README)
    assert not any((ROOT / "kernels" / name).exists() for name in ABSENT)
