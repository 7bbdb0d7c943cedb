"""In docs/reference the Python of sandbox.md runs, and service.md names the service's routes and options."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocstar.sandbox.service.openapi import ROUTES

DOCS = Path(__file__).parents[2] / "docs" / "reference"
BLOCKS = re.findall(r"```python\n(.*?)```", (DOCS / "sandbox.md").read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_the_document_runs(number: int, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKS[number]], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    if "asyncio.run" in BLOCKS[number]:
        *outcomes, last = ended.stdout.split("\n")[2:-1]
        assert sorted(outcomes) == ["0 0", "1 1", "2 4"]
        assert last == "21 22"


def test_there_is_a_block_without_a_loop_and_one_with() -> None:
    assert ["asyncio" in block for block in BLOCKS] == [False, True]


def test_the_service_document_names_every_path_and_no_unknown_option() -> None:
    text = (DOCS / "service.md").read_text(encoding="utf-8")
    for route in ROUTES:
        last = route.path.replace("{id}", "ID").replace("{name}", "NAME").rpartition("/")[2]
        assert f"/{last}" in text or last in ("batch", "long-batch"), route.path
    shown = subprocess.run(
        [sys.executable, "-c", "from rocstar.sandbox.cli import main; main(['serve', '--help'])"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    of_worker = {"--patience-s"}
    assert set(re.findall(r"`(--[a-z-]+)", text)) - of_worker <= set(re.findall(r"--[a-z-]+", shown))
