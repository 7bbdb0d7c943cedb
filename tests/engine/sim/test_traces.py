"""Records of a run become work; what cannot be replayed is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.sim.traces import load_trace


def record(step: int, task: str, sibling: int, turns: list[tuple[int, int]], **changes: Any) -> dict[str, Any]:
    """A record as train writes it, with the fields that a replay needs; prompt of 5 tokens."""
    end = turns[-1][1] if turns else 5
    return {
        "v": 1,
        "id": f"s{step}/{task}/{sibling}",
        "step": step,
        "stage": "main",
        "task": {"id": task, "source": "x", "question": "q", "answer": "a"},
        "ids": [0] * end,
        "segments": [{"start": 0, "end": 5, "origin": "prompt", "text": ""}],
        "turns": [{"start": a, "end": b, "text": "", "finish": "stop", "calls": []} for a, b in turns],
    }


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="ascii")
    return path


def test_turns_and_tools_come_back(tmp_path: Path) -> None:
    write(tmp_path / "trajectories" / "step_1.jsonl", record(1, "a", 0, [(5, 9)]))
    write(
        tmp_path / "trajectories" / "step_2.jsonl",
        record(2, "a", 0, [(5, 8), (20, 26)]),
        record(2, "a", 1, [(5, 35)]),
        record(2, "b", 0, []),
    )
    workload, before = load_trace(tmp_path, tool_s=0.5)
    assert workload.name.endswith("step 2")
    first, second = workload.trajectories
    assert [(t.new_tokens, t.tool_tokens) for t in first.turns] == [(3, 12), (6, 0)]
    assert first.turns[0].tool_s > 0 and first.turns[1].tool_s == 0
    assert first.group == second.group and first.prompt_tokens == 5
    assert first.max_tokens == 30, "the longest response of the files is the limit"
    assert before is not None and len(before.trajectories) == 1
    earlier, none = load_trace(tmp_path, step=1)
    assert none is None and earlier.trajectories[0].turns[0].new_tokens == 4
    assert load_trace(tmp_path, tool_s=0.5)[0] == workload


def test_drawing_groups_keeps_siblings_together(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", *(record(1, t, s, [(5, 9 + s)]) for t in "ab" for s in range(3)))
    drawn = load_trace(file, tasks=5)[0].trajectories
    assert len(drawn) == 15
    groups = {t.group for t in drawn}
    assert len(groups) == 5
    assert all(len({t.traj for t in drawn if t.group == g}) == 3 for g in groups)


def test_what_cannot_be_replayed_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no trajectory records"):
        load_trace(tmp_path)
    file = write(tmp_path / "r.jsonl", record(1, "a", 0, [(5, 50)]))
    with pytest.raises(ValueError, match="no step 3; there are 1 to 1"):
        load_trace(file, step=3)
    with pytest.raises(ValueError, match="45 response tokens exceed the limit of 10"):
        load_trace(file, limit_tokens=10)
    with pytest.raises(ValueError, match="has no trajectory with a turn"):
        load_trace(write(tmp_path / "empty.jsonl", record(1, "a", 0, [])))
    broken = record(1, "a", 0, [(5, 9)])
    del broken["turns"]
    with pytest.raises(ValueError, match="lacks 'turns'"):
        load_trace(write(tmp_path / "broken.jsonl", broken))
    words = tmp_path / "words.jsonl"
    words.write_text("hello\n", encoding="ascii")
    with pytest.raises(ValueError, match="not JSON"):
        load_trace(words)
