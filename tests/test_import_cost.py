"""What must stay light: help and config parsing answer before torch could be imported."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "datasets", "matplotlib", "sympy")


def modules_after(code: str) -> set[str]:
    """The top-level modules of a fresh interpreter after `code` ran."""
    report = "\nimport sys\nprint('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    result = subprocess.run(
        [sys.executable, "-c", code + report],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize(
    "module",
    [
        "rocstar.engine.types",
        "rocstar.train.cli",
        "rocstar.train.config",
        "rocstar.train.console",
        "rocstar.train.metrics",
        "rocstar.train.report",
        "rocstar.train.trackers",
    ],
)
def test_import_loads_nothing_heavy(module: str) -> None:
    assert not modules_after(f"import {module}") & set(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        f"import sys\nsys.argv = {['rocstar', *arguments]!r}\nfrom rocstar.train.cli import main\n"
        "try:\n    code = main()\nexcept SystemExit as stop:\n    code = stop.code\nassert not code, code"
    )
    assert not modules_after(code) & set(HEAVY)


def test_transformers_imports_from_the_repository_root() -> None:
    """The folder `kernels/` must not be taken for the PyPI package of that name."""
    assert "transformers" in modules_after("import transformers.integrations.hub_kernels")
