"""What a step tells of itself. Whole runs: tests/integration."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rocstar.train import loop
from rocstar.train.learner.loss_stats import LossStats, WorstToken
from rocstar.train.recipe.config import Recipe


def paused_stats(bad_steps: int) -> LossStats:
    token = WorstToken(
        trajectory="s1/task0/0",
        position=7,
        token=3,
        after_tool=True,
        rollout_logprob=-0.5,
        learner_logprob=-4.5,
    )
    return LossStats(worst=[token], bad_steps=bad_steps, is_paused=bad_steps >= 3)


def test_a_paused_step_is_told_and_its_worst_tokens_are_dumped(tmp_path: Path) -> None:
    notes: list[str] = []
    run: Any = SimpleNamespace(
        recipe=Recipe(),
        directory=tmp_path,
        decode=lambda ids: f"<{ids[0]}>",
        listeners=SimpleNamespace(note=notes.append),
        bad_steps=0,
    )
    loop.note_gate(run, 2, paused_stats(2))
    assert run.bad_steps == 2 and not notes and not (run.directory / "off_policy").exists()
    loop.note_gate(run, 3, paused_stats(3))
    path = run.directory / "off_policy" / "step_000003.json"
    assert run.bad_steps == 3 and "step 3: optimizer paused" in notes[0] and str(path) in notes[0]
    dumped = json.loads(path.read_text())
    assert dumped["bounds"] == {"kl": 0.05, "ratio_p99": 2.0, "steps": 3}
    assert dumped["worst"] == [
        {"trajectory": "s1/task0/0", "position": 7, "token": 3, "after_tool": True,
         "rollout_logprob": -0.5, "learner_logprob": -4.5, "text": "<3>"}
    ]  # fmt: skip
