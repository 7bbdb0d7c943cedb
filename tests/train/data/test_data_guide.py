"""The first build of docs/guide/data.md gives what the guide shows."""

import json
import subprocess
from pathlib import Path

import pytest

from rocstar.train.cli import main
from tests.fakes.json_lines import read_lines, write_lines

from ..test_guides import BLOCK, GUIDES


def test_the_first_build_prints_what_the_guide_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = BLOCK.findall((GUIDES / "data.md").read_text(encoding="utf-8"))
    script, shown, row, again = (text for _, _, text in blocks[1:5])
    *files, command = script.rpartition("rocstar ")[0], script.strip().splitlines()[-1]
    subprocess.run(["bash", "-e", "-c", files[0]], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    assert main(command.split()[1:]) == 0
    assert capsys.readouterr().out == shown
    written = read_lines(tmp_path / "tasks" / "tasks.jsonl")
    (first,) = (found for found in written if found["provenance"]["row"] == "a")
    task_id = first["id"]
    first["id"] = first["provenance"]["files"] = "…"
    expected = json.loads(row)
    expected["provenance"]["files"] = "…"
    assert first == expected
    (tmp_path / "stage3.toml").write_text(again)
    record = {"v": 1, "task": {"id": task_id}, "outcome": {"reward": 1.0, "is_correct": True}}
    write_lines(tmp_path / "rollouts.jsonl", [record] * 8)
    assert main(["data", "build", "stage3.toml", "--out", "stage3"]) == 0
    (left,) = read_lines(tmp_path / "stage3" / "tasks.jsonl")
    assert left["answer"] == "366" and left["provenance"]["licence"] == "cc-by-4.0"
