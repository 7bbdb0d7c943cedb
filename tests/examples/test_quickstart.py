"""The script and the notebook of the quickstart train, with fewer and smaller steps."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from ..needs import modules
from ..patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SMALL = {
    "sft.steps": 30,
    "sft.num_demonstrations": 64,
    "stages.0.steps": 2,
    "stages.0.max_response_tokens": 48,
    "rl.tasks_per_step": 1,
    "rl.rollouts_per_task": 4,
    "rl.group_size": 2,
    "eval.data.size": 2,
    "eval.data.limit": 4,
}
MAX_BYTES = 150_000


def test_the_script_trains_and_prints_scores_and_the_next_command(tmp_path: Path) -> None:
    options = [f"--{field}={value}" for field, value in SMALL.items()]
    command = [sys.executable, str(EXAMPLES / "quickstart.py"), *options]
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    scores, command_line = ended.stdout.splitlines()
    assert re.fullmatch(r"held-out avg@4: \d\.\d\d before RL, \d\.\d\d after it", scores)
    rocstar, verb, folder = command_line.rpartition(": ")[2].split()
    assert Path(rocstar).exists() and verb == "view" and (Path(folder) / "report.html").exists()
    wrong = [*command[:2], "--rl.lr=abc"]
    ended = subprocess.run(wrong, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 1 and ended.stderr.startswith("quickstart.py: ")


def test_the_script_names_what_it_needs() -> None:
    """uv and pip-run read the block; the package of this checkout is what it asks for."""
    text = (EXAMPLES / "quickstart.py").read_text(encoding="utf-8")
    block = re.match(r"# /// script\n((?:#.*\n)+?)# ///\n", text)
    assert block is not None
    needs = tomllib.loads("".join(line[2:] for line in block[1].splitlines(keepends=True)))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert needs == {"requires-python": project["requires-python"], "dependencies": ["rocstar[train]"]}


def test_the_notebook_runs_in_a_kernel(tmp_path: Path) -> None:
    modules("nbclient", "ipykernel", "matplotlib")
    import nbclient
    import nbformat

    text = (EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8")
    for field, value in SMALL.items():
        text = re.sub(rf"(--{field}=)\d+", rf"\g<1>{value}", text)
    notebook = nbformat.reads(text, 4)
    nbclient.NotebookClient(notebook, timeout=PATIENCE_S, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = {kind for output in cells[1].outputs for kind in output.get("data", {})}
    assert "image/png" in shown and cells[1].outputs[-1]["data"]["text/plain"] == "'complete'"
    printed = [output["text"] for cell in cells[2:] for output in cell.outputs]
    assert printed[0].startswith("held-out avg@4: ") and printed[1].startswith("Question: ")


def test_the_notebook_keeps_small_outputs() -> None:
    path = EXAMPLES / "quickstart.ipynb"
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert path.stat().st_size < MAX_BYTES and "error" not in kinds
    assert len(cells) == 4 and all(cell["outputs"] for cell in cells[1:]), "run it, and keep what it shows"
    assert not re.search(r"/(home|root|work)/", path.read_text(encoding="utf-8"))
