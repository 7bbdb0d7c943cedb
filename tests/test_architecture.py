"""Who may know whom: the contracts of .importlinter, and what import-linter does not see.

It does not see rocstar.kernels, which has no __init__.py, and it knows what is forbidden but not what alone
is allowed: the folders of `OUTSIDE` may import nothing else.
"""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]

STATISTICS = "train/evaluation/statistics"
ANALYSIS = "train/reading/analysis/statistics"
OUTSIDE = {
    "kernels": {"torch", "triton", "numpy"},
    "train/algorithm": {"torch"},
    STATISTICS: {"numpy", "scipy"},
    ANALYSIS: {"numpy", "scipy"},
}
"""The only packages besides the standard library that these folders may import."""

IMPURE = {"asyncio", "datetime", "io", "logging", "os", "pathlib", "shutil", "socket", "subprocess", "time"}
"""Standard modules that the pure folders of train must not touch: no I/O, no clock."""

MOST = {"train": (22, 95, 12), "engine": (20, 50, 7), "sandbox": (16, 53, 7)}
"""Rooms, arrows and floors that a reader can keep in mind; the sandbox's `http` is for every server."""


@pytest.fixture(scope="module")
def layout() -> ModuleType:
    spec = importlib.util.spec_from_file_location("layout", ROOT / "benchmarks" / "layout.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["layout"] = module
    spec.loader.exec_module(module)
    return module


def test_imports_keep_the_contracts() -> None:
    """In a new process: import-linter disables all existing loggers."""
    program = "from importlinter import cli; cli.lint_imports_command()"
    command = [sys.executable, "-c", program, "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", MOST)
def test_the_layout_stays_small(layout: ModuleType, package: str) -> None:
    found = layout.layout(ROOT, package)
    rooms, arrows, floors = MOST[package]
    assert not found.circle
    assert (found.rooms <= rooms, found.arrows <= arrows, found.floors <= floors) == (True, True, True), found


def imports(path: Path) -> Iterator[str]:
    """Yield the absolute dotted name of each import of a file, wherever in the file."""
    module = ["rocstar", *path.relative_to(ROOT).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*module[: -node.level]] if node.level else []
            base += (node.module or "").split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def impurities() -> Iterator[str]:
    """Yield a sentence for each import that a folder of `OUTSIDE` must not have."""
    for folder, allowed in OUTSIDE.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            for name in imports(path):
                top = name.split(".")[0]
                if top == "rocstar":
                    if not is_inside(name, "rocstar." + folder.replace("/", ".")):
                        yield f"{place} imports {name}; {folder}/ knows nothing of ours"
                elif top not in allowed | sys.stdlib_module_names:
                    more = f"the standard library and {sorted(allowed)}"
                    yield f"{place} imports {name}; {folder}/ may import {more}"
                if folder != "kernels" and top in IMPURE:
                    yield f"{place} imports {name}; {folder}/ does no I/O and has no clock"


def test_kernels_and_the_algorithm_are_pure() -> None:
    assert not list(impurities())


@pytest.mark.parametrize("folder", ["kernels", "tests", "."])
def test_no_init_file_hides_a_pypi_package(folder: str) -> None:
    """A regular package `kernels` at the root would be what `import kernels` in transformers finds."""
    assert not (ROOT / folder / "__init__.py").exists()
    if folder == "tests":
        assert not list((ROOT / folder).rglob("__init__.py"))
