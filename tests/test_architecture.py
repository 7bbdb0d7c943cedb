"""Who may know whom. An arrow that is not in a table here is a design change: argue for it in its commit."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ARROWS: dict[str, set[str]] = {
    "kernels": set(),
    "sandbox": set(),
    "engine": {"sandbox"},
    "train": {"engine", "sandbox", "kernels"},
}

OUTSIDE = {"kernels": {"torch", "triton", "numpy"}, "train/algorithm": {"torch"}}
"""The only packages besides the standard library that these folders may import."""

IMPURE = {"asyncio", "datetime", "io", "logging", "os", "pathlib", "shutil", "socket", "subprocess", "time"}
"""Standard modules that `train/algorithm/` must not touch: no I/O, no clock."""

CONCRETE = {
    "rocstar.engine.inference.embedded",
    "rocstar.engine.inference.sglang",
    "rocstar.sandbox.fabric",
    "rocstar.sandbox.pool",
    "rocstar.sandbox.service",
    "rocstar.sandbox.session",
}
"""Implementations of a protocol. Outside their own folder only a composition root may name them."""

COMPOSITION_ROOTS = {
    "train/agent.py": "chooses the sandbox for every verb that rolls out",
    "train/engines.py": "chooses the engine",
    "train/servers.py": "starts the servers of an engine that is not of this process",
    "train/server_weights.py": "gives them weights, which no other engine takes this way",
}


def imports(path: Path, root: Path) -> Iterator[str]:
    """The absolute dotted name of everything that a file under `root` imports, wherever in the file."""
    module = ["rocstar", *path.relative_to(root).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*module[: -node.level]] if node.level else []
            base += (node.module or "").split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def violations(root: Path) -> list[str]:
    """One sentence per broken arrow in the tree at `root`."""
    found = []
    for folder, allowed in ARROWS.items():
        for path in sorted((root / folder).rglob("*.py")):
            place = path.relative_to(root).as_posix()
            for name in imports(path, root):
                parts = name.split(".")
                if parts[0] == "rocstar" and len(parts) > 1 and parts[1] not in allowed | {folder}:
                    found.append(f"{place} imports {name}; {folder}/ may import {sorted(allowed)}")
                if any(is_inside(name, concrete) for concrete in CONCRETE) and not (
                    place in COMPOSITION_ROOTS or is_inside(name, "rocstar." + place.split("/")[0])
                ):
                    found.append(f"{place} imports the implementation {name}; name its protocol instead")
                found += impurities(place, name)
    return found


def impurities(place: str, name: str) -> Iterator[str]:
    """What the folders of `OUTSIDE` must not import."""
    top = name.split(".")[0]
    for folder, allowed in OUTSIDE.items():
        if not place.startswith(folder + "/"):
            continue
        if top == "rocstar":
            if not is_inside(name, "rocstar." + folder.replace("/", ".")):
                yield f"{place} imports {name}; {folder}/ knows nothing of ours"
        elif top not in allowed | sys.stdlib_module_names:
            yield f"{place} imports {name}; {folder}/ may import the standard library and {sorted(allowed)}"
        if folder == "train/algorithm" and top in IMPURE:
            yield f"{place} imports {name}; {folder}/ does no I/O and has no clock"


def test_imports_follow_the_arrows() -> None:
    assert not violations(ROOT)


@pytest.mark.parametrize(
    ("place", "line", "complaint"),
    [
        ("sandbox/a.py", "from rocstar.engine.types import Task", "sandbox/ may import []"),
        ("kernels/a.py", "import rocstar.sandbox", "kernels/ may import []"),
        ("kernels/a.py", "import pydantic", "kernels/ may import the standard library"),
        ("engine/a.py", "def f():\n    from rocstar.train import loop", "engine/ may import ['sandbox']"),
        ("engine/a.py", "from rocstar import train", "engine/ may import ['sandbox']"),
        ("engine/a.py", "from ..train import loop", "engine/ may import ['sandbox']"),
        ("engine/a.py", "from rocstar.sandbox.pool import Pool", "name its protocol"),
        ("train/loop.py", "from rocstar.engine.inference import embedded", "name its protocol"),
        ("train/algorithm/a.py", "import numpy", "may import the standard library and ['torch']"),
        ("train/algorithm/a.py", "from time import monotonic", "has no clock"),
        ("train/algorithm/a.py", "from rocstar.train.config import Config", "knows nothing of ours"),
        ("train/algorithm/a.py", "from ..config import Config", "knows nothing of ours"),
    ],
)
def test_a_broken_arrow_is_named(tmp_path: Path, place: str, line: str, complaint: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(line + "\n")
    assert any(found.startswith(place) and complaint in found for found in violations(tmp_path))


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("train/agent.py", "from rocstar.engine.inference.embedded import EmbeddedEngine"),
        (
            "train/algorithm/a.py",
            "import math\nimport torch\nfrom .roc import x\nfrom rocstar.train.algorithm import y",
        ),
        ("engine/inference/a.py", "from .embedded import EmbeddedEngine"),
        ("engine/a.py", "from rocstar.sandbox.types import Status"),
        ("train/a.py", "from rocstar.kernels.grpo import loss"),
    ],
)
def test_a_kept_arrow_is_not(tmp_path: Path, place: str, line: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(line + "\n")
    assert not violations(tmp_path)


def test_composition_roots_are_few() -> None:
    assert len(COMPOSITION_ROOTS) <= 4


@pytest.mark.parametrize("folder", ["kernels", "tests", "."])
def test_no_init_file_hides_a_pypi_package(folder: str) -> None:
    """A regular package `kernels` at the root would be what `import kernels` in transformers finds."""
    assert not (ROOT / folder / "__init__.py").exists()
    if folder == "tests":
        assert not list((ROOT / folder).rglob("__init__.py"))
