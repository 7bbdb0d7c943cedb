"""What must stay light: help and config parsing answer before torch could be imported."""

import subprocess
import sys
from pathlib import Path

from .patience import PATIENCE_S

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
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.rpartition("LOADED")[2].split())


def test_import_loads_nothing_heavy() -> None:
    modules = [
        "rocstar.engine.types",
        "rocstar.train.algorithm.advantages",
        "rocstar.train.algorithm.aggregate",
        "rocstar.train.algorithm.roc",
        "rocstar.train.cli",
        "rocstar.train.evaluation.compare",
        "rocstar.train.recipe.load",
        "rocstar.train.record.console",
        "rocstar.train.record.metrics",
        "rocstar.train.record.trackers",
        "rocstar.train.reading.view.export_page",
        "rocstar.train.reading.view.web",
    ]
    lines = (f"import {name}; assert not {{*sys.modules}} & {set(HEAVY)}, '{name}'\n" for name in modules)
    modules_after("import sys\n" + "".join(lines))


def test_help_loads_nothing_heavy() -> None:
    verbs = ["--help", "train --help", "recipe", "recipe rl.lr", "recipe --all", "recipe --json", "recipe --markdown"]
    code = f"""
from rocstar.train.cli import main
for line in {verbs}:
    try:
        code = main(line.split())
    except SystemExit as stop:
        code = stop.code
    assert not code, (line, code)
"""
    assert not modules_after(code) & set(HEAVY)


PYDANTIC = {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
"""What `rocstar recipe` may cost: the declarations of the fields, and what declares them."""


def test_the_recipe_is_described_by_its_declarations_alone() -> None:
    """What a bare interpreter of this environment has is not its doing."""
    code = "import sys\nfrom rocstar.train.cli import main\nassert main(['recipe']) == 0"
    loaded = modules_after(code) - modules_after("") - set(sys.stdlib_module_names)
    assert {name for name in loaded if not name.startswith("_")} <= PYDANTIC | {"rocstar"}


MOST_MODULES = {"rocstar.train.main": 189, "rocstar.train.compose.start": 330}
"""Modules of ours from `main` to the loss, and of a run with its checks, evaluations and report."""


def test_a_run_loads_few_of_our_modules() -> None:
    counting = "\nimport sys\nfound = sum(name.partition('.')[0] == 'rocstar' for name in sys.modules)"
    modules_after(
        "".join(
            f"import {module}{counting}\nassert found <= {most}, ({module!r}, found)\n"
            for module, most in MOST_MODULES.items()
        )
    )
