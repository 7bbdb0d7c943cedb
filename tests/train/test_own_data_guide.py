"""Every block of docs/guide/own-data.md runs, in order, in one folder, offline, and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocstar.engine.record.reading import from_record, read_folder

from ..needs import modules
from ..warm_python import warm

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "own-data.md"
DEADLINE_S = 300.0
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.M | re.S)


def blocks(guide: Path = GUIDE) -> list[tuple[str, str, str | None]]:
    """(language, text, the output that the guide shows behind it) of what is run."""
    found = BLOCK.findall(guide.read_text(encoding="utf-8"))
    followed = zip(found, [*found[1:], ("", "")], strict=True)
    return [
        (language, text, shown if next_language == "text" else None)
        for (language, text), (next_language, shown) in followed
        if language != "text"
    ]


def run(language: str, text: str, folder: Path) -> str:
    """What the block prints. It finds `rocstar` and `python` where this interpreter lies."""
    command = {"bash": ["bash", "-e", "-c", text], "python": [str(warm().executable), "-c", text]}[language]
    path = f"{warm().executable.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "PYTHONWARNINGS"))}
    result = subprocess.run(
        command,
        cwd=folder,
        env={**keep, "PATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 0, f"{text}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="session")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of one who did all that the guide says, and what each block printed."""
    modules("pyarrow")
    folder = tmp_path_factory.mktemp("guide")
    return folder, [run(language, text, folder) for language, text, _ in blocks()]


def test_blocks_print_what_the_guide_says(followed: tuple[Path, list[str]]) -> None:
    _, printed = followed
    shown = [(text, said) for (_, _, text), said in zip(blocks(), printed, strict=True) if text is not None]
    assert len(shown) >= 2
    for text, said in shown:
        assert said == text


def test_the_run_of_the_guide_saw_the_data(followed: tuple[Path, list[str]]) -> None:
    """Meta and questions of the file, and the system message of the held-out row and the conversations."""
    folder, printed = followed
    records = list(read_folder(folder / "runs" / "mine" / "trajectories"))
    assert len(records) == 3 * 2 * 4
    assert {record["task"]["meta"]["level"] for record in records} == {1, 2, 3, 4}
    for record in records:
        prompt, at = record["segments"][0]["text"], 0
        for message in from_record(record).task.messages:
            at = prompt.index(message["content"], at) + len(message["content"])
    assert any("It is 81." in record["segments"][0]["text"] for record in records)
    assert "72" in next(said for said in printed if "openai/gsm8k:main" in said)
    assert str(folder / "mine" / "heldout.parquet") in (folder / "runs" / "mine" / "config.toml").read_text()


def test_links_of_the_guide_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)\s#]+)", GUIDE.read_text(encoding="utf-8"))
    assert not [t for t in targets if not t.startswith("http") and not (GUIDE.parent / t).exists()]
