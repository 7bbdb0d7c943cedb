"""The trajectories of the report: the right ones, readable, and unable to act."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.report_trajectories import choose, kind_of, sample, trajectory_html

MakeRecord = Callable[..., dict[str, Any]]


def attacked(value: Any, attack: str) -> Any:
    """The same record with every text of a model, a tool or a data set replaced by an attack."""
    if isinstance(value, dict):
        return {key: attacked(item, attack) for key, item in value.items()}
    if isinstance(value, list):
        return [attacked(item, attack) for item in value]
    return f"{value}{attack}<tool_call>{attack}" if isinstance(value, str) else value


@pytest.mark.parametrize("reward", [1.0, 0.0, None])
def test_what_a_model_wrote_cannot_act(
    reward: float | None, record: MakeRecord, tags_of: Any, attack: str
) -> None:
    hostile = attacked(record(3, 1, reward=reward), attack)
    hostile["turns"][0]["calls"][0]["malformed"] = attack
    hostile["turns"][1]["calls"][0]["arguments"] = {attack: attack, "b": 2}
    html = trajectory_html(hostile)
    tags = tags_of(html)
    assert not {"script", "img"} & {tag for tag, _ in tags.found}
    assert not [a for _, attributes in tags.found for a in attributes if a.startswith("on")]
    assert attack in tags.text, "inert, and still readable"


def test_ten_trajectories_of_every_kind_from_both_ends(run_dir: Path) -> None:
    records, notes = sample(run_dir)
    assert not notes
    assert [r["step"] for r in records] == [1] * 5 + [60] * 5
    kinds = ["kept correct", "dropped_positive", "kept wrong", "dropped_negative", "no_signal"]
    assert [kind_of(r) for r in records] == kinds * 2


def test_a_run_of_one_step_fills_the_ten_from_it(tmp_path: Path, record: MakeRecord) -> None:
    folder = tmp_path / "trajectories"
    folder.mkdir()
    (folder / "step_9.jsonl").write_text("".join(json.dumps(record(9, i)) + "\n" for i in range(14)))
    assert len(sample(tmp_path)[0]) == 10
    (folder / "step_10.jsonl").write_text(json.dumps(record(10, 0)) + "\n")
    assert [r["step"] for r in sample(tmp_path)[0]] == [9] * 9 + [10], "10 comes after 9"


def test_one_file_of_many_steps_gives_its_ends(tmp_path: Path, record: MakeRecord) -> None:
    (tmp_path / "trajectories").mkdir()
    lines = [json.dumps(record(step, i)) for step in (3, 4, 5, 4) for i in range(6)]
    (tmp_path / "trajectories" / "all.jsonl").write_text("\n".join(lines) + "\n")
    assert [r["step"] for r in sample(tmp_path)[0]] == [3] * 5 + [5] * 5


def test_what_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: MakeRecord
) -> None:
    (tmp_path / "trajectories").mkdir()
    path = tmp_path / "trajectories" / "step_1.jsonl"
    path.write_text('not json\n{"v": 2}\n' + json.dumps(record(1, 0)) + "\n")
    (tmp_path / "trajectories" / "step_2.jsonl.zst").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    records, notes = sample(tmp_path)
    assert len(records) == 1
    assert notes == [
        "step_1.jsonl, line 1: not JSON, left out",
        "step_1.jsonl, line 2: not a trajectory record of version 1, left out",
        "step_2.jsonl.zst is compressed; to read it: pip install 'rocstar[zstd]'",
    ]


def test_compressed_trajectories_are_read(tmp_path: Path, record: MakeRecord) -> None:
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "trajectories").mkdir()
    data = zstandard.ZstdCompressor().compress(json.dumps(record(4, 0)).encode() + b"\n")
    path = tmp_path / "trajectories" / "step_4.jsonl.zst"
    path.write_bytes(data)
    assert sample(tmp_path) == ([record(4, 0)], [])
    path.write_bytes(b"no such frame")
    records, notes = sample(tmp_path)
    assert not records
    assert "the rest is left out" in notes[0]


def test_within_a_kind_errors_and_clean_ones_alternate(record: MakeRecord) -> None:
    clean = [record(1, i, turns=[]) for i in range(3)]
    faulty = [record(1, i) for i in range(3, 5)]
    assert [r["sibling"] for r in choose([*clean, *faulty], 4)] == [3, 0, 4, 1]


def test_a_trajectory_shows_why_and_how(record: MakeRecord, tags_of: Any) -> None:
    text = tags_of(trajectory_html(record(5, 1, reason="dropped_positive"))).text
    for part in (
        "Dropped by RoC",
        "tool errors 0.50 + answer format 0.00",
        "NameError",
        "gcd(84, 36) * undefined",
    ):
        assert part in text
    assert text.count("print(12)") == 1, "the program of a call, once"
    lost = tags_of(trajectory_html(record(5, 1, reason="failed", reward=None))).text
    assert "no reward" in lost
    assert "sandbox_lost: supervisor died" in lost


def test_undecodable_unfinished_and_unmatched_calls_are_shown(record: MakeRecord, tags_of: Any) -> None:
    call = {
        "name": None,
        "arguments": None,
        "malformed": "not JSON",
        "status": "malformed_call",
        "is_error": True,
        "result": "Bad",
    }
    other = {
        "name": "python",
        "arguments": {"code": "1", "lang": "py"},
        "malformed": None,
        "status": "ok",
        "is_error": False,
        "result": "",
    }
    turns = [
        {"text": "a<tool_call>{oops", "finish": "length", "calls": [call, other]},
        {"text": "b<tool_call>never run</tool_call>", "finish": "stop", "calls": []},
    ]
    text = tags_of(
        trajectory_html(
            record(1, 0, turns=turns, segments=[], decision={"kept": False, "reason": "other_bucket"})
        )
    ).text
    for part in (
        "{oops",
        "malformed_call: not JSON",
        '"lang": "py"',
        "cut here",
        "never run",
        "Bucket: other_bucket",
    ):
        assert part in text


def test_long_texts_are_clipped(record: MakeRecord) -> None:
    html = trajectory_html(record(1, 0, text="x" * 50_000))
    assert len(html) < 60_000
    assert "[30000 more characters]" in html
