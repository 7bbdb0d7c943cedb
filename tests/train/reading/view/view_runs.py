"""Run directories for the viewer's tests, written by the code that writes a run's files."""

import base64
import json
import random
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rocstar.engine.record.json_record import Verdict
from rocstar.engine.record.learned import LearnedTokens, write_learned
from rocstar.engine.types import (
    HIDDEN,
    Failed,
    FinishReason,
    Outcome,
    Scored,
    Span,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryTimes,
    TurnTimes,
)
from rocstar.train.algorithm.roc import Decision, Penalty, RocMode, choose_siblings, roc_penalty
from rocstar.train.record.metrics import MetricsWriter
from rocstar.train.record.run_directory import records_file
from tests.fakes.trajectories import FakeRecord, FakeTurn, make_branch, make_trajectory, write_step_file

from ..diagnosis.made_runs import planted

CONFIG = """
[rl]
rollouts_per_task = 6
group_size = 4
roc_mode = "paper"
roc_eps = 0.1
"""
LEDGER = ("kept", "dropped_positive", "dropped_negative", "no_signal", "failed", "ended_early")


@dataclass(frozen=True, kw_only=True)
class MadeSibling:
    """One sibling to be: how its calls went, and what came of it."""

    correct: bool | None
    """None: it failed."""
    calls: int = 1
    errors: int = 0
    answers: int = 1


SIBLINGS = (
    MadeSibling(correct=True, calls=2, errors=1),
    MadeSibling(correct=True, calls=2),
    MadeSibling(correct=True, calls=0),
    MadeSibling(correct=False, calls=1, errors=1),
    MadeSibling(correct=False, answers=0),
    MadeSibling(correct=None),
)
ALIKE = tuple(MadeSibling(correct=True) for _ in range(3))


def trajectory(
    made: MadeSibling, *, step: int, task: Task, sibling: int, text: str = "", num_tokens: int = 8, seed: int = 0
) -> tuple[Trajectory, list[str]]:
    """A trajectory of one turn for each call and one that answers, with the text of each segment."""
    rng = random.Random(f"{seed}/{step}/{task.id!a}/{sibling}")

    def ids(num: int) -> list[int]:
        return [rng.randrange(1000) for _ in range(num)]

    def said(text: str, **more: Any) -> FakeTurn:
        logprobs = [-rng.random() / 3 for _ in range(num_tokens)]
        return FakeTurn(ids=ids(num_tokens), logprobs=logprobs, text=text, **more)

    turns, texts = [], [f"<user>{task.question}"]
    for k in range(made.calls):
        call = ToolCall(name=f"python{text}", arguments={"code": f"print({k}){text}"})
        is_error = k < made.errors
        result = ToolResult(status="error" if is_error else "ok", is_error=is_error, text=f"result {k}{text}")
        written = f'Call {k}.{text}\n<tool_call>\n{{"name": "python"}}\n</tool_call>'
        turns.append(said(written, calls=(call,), results=(result,), answer=ids(3)))
        texts += [written, f"<tool>{result.text}"]
    answer = f"So <answer>{sibling}</answer>{text}" * made.answers or f"no answer{text}"
    return make_trajectory(
        *turns,
        said(answer),
        prompt=ids(4),
        task=task,
        step=step,
        sibling=sibling,
        seed=seed,
        version=step - 1,
        finish_reason=FinishReason.answered if made.answers else FinishReason.max_tokens,
        outcome=_outcome(made, text),
        times=times_of(made, sibling=sibling),
    ), [*texts, answer]


def times_of(made: MadeSibling, *, sibling: int) -> TrajectoryTimes:
    """Each turn takes a second and each call half of one; the k-th sibling begins k seconds later."""
    starts = [0.5 + 1.5 * k for k in range(made.calls + 1)]
    turns = [
        TurnTimes(written=Span(start, start + 1.0), calls=(Span(start + 1.0, start + 1.5),)) for start in starts[:-1]
    ]
    end = starts[-1] + 1.0
    return TrajectoryTimes(
        began=1_700_000_000.0 + sibling,
        ended_s=end + 0.25,
        granted_s=0.75,
        turns=(*turns, TurnTimes(written=Span(starts[-1], end))),
        judged=Span(end, end + 0.25),
    )


def learned_of(one: Trajectory) -> LearnedTokens:
    """Every other token lies a quarter lower at the learner, and every third one was held by a bound."""
    at = np.arange(one.num_policy_tokens)
    return LearnedTokens(
        gaps=np.where(at % 2, -0.25, 0.0).astype(np.float32),
        entropies=np.full(len(at), 1.0, np.float32),
        log_ratios=np.where(at % 3, 0.0, 0.5).astype(np.float32),
        codes=np.where(at % 3, 0, 2).astype(np.uint8),
    )


def _outcome(made: MadeSibling, text: str) -> Outcome:
    if made.correct is None:
        return Failed(kind="sandbox_lost", retryable=True, detail=f"supervisor died{text}")
    return Scored(reward=float(made.correct), method=f"strict{text}", is_correct=made.correct)


def decided(siblings: Sequence[MadeSibling]) -> list[tuple[Decision | None, Penalty | None]]:
    """What Resample-on-Correct makes of them; None of those that failed."""
    scored = [made for made in siblings if made.correct is not None]
    penalties = [
        roc_penalty(
            num_tool_calls=made.calls, num_tool_errors=made.errors, num_answers=made.answers, num_turns=made.calls + 1
        )
        for made in scored
    ]
    rewards = [float(bool(made.correct)) for made in scored]
    rng = random.Random(3)
    decisions = choose_siblings(
        rewards,
        [bool(made.correct) for made in scored],
        penalties,
        [rng.expovariate(1.0) for _ in scored],
        keep=4,
        mode=RocMode.paper,
    )
    pairs = iter(zip(decisions, penalties, strict=True))
    return [(None, None) if made.correct is None else next(pairs) for made in siblings]


def write_step(
    run: Path,
    step: int,
    groups: Sequence[tuple[Task, Sequence[MadeSibling]]],
    *,
    text: str = "",
    advantage: Callable[[MadeSibling], float] = lambda made: 0.1 + 0.2,
    **shape: Any,
) -> dict[str, int]:
    """Write the records of a step; its ledger."""
    ledger = dict.fromkeys(LEDGER, 0)
    records = []
    learned: dict[str, LearnedTokens] = {}
    for task, siblings in groups:
        for number, (made, (decision, penalty)) in enumerate(zip(siblings, decided(siblings), strict=True)):
            one, texts = trajectory(made, step=step, task=task, sibling=number, text=text, **shape)
            bucket = decision.reason.value if decision else "failed"
            ledger[bucket] += 1
            verdict = Verdict(
                bucket=bucket,
                penalty_error=penalty.error if penalty else None,
                penalty_format=penalty.format if penalty else None,
                advantage=advantage(made) if bucket == "kept" else None,
            )
            if bucket == "kept":
                learned[str(one.key)] = learned_of(one)
            records.append(FakeRecord(trajectory=one, texts=texts, verdict=verdict, num_answers=made.answers))
    write_step_file(records_file(run, step), records, stage=f"one{text}")
    write_learned(records_file(run, step).parent, learned, step=step, rank=0, ranks=1)
    return ledger


def make_view_run(run: Path, *, steps: int = 2, text: str = "", **shape: Any) -> Path:
    """A run of some steps, each with a group that was drawn from, one without a signal, and a hidden one.

    `text` is added to every text that a policy, a tool, a task or a judge writes.
    """
    run.mkdir(parents=True)
    (run / "config.toml").write_text(CONFIG)
    with MetricsWriter(run / "metrics.jsonl", clock=lambda: 0.0) as writer:
        for step in range(1, steps + 1):
            ledger = write_step(run, step, groups_of(text), text=text, **shape)
            row = {f"ledger/{name}": float(count) for name, count in ledger.items()}
            row |= {"ledger/generated": float(sum(ledger.values())), "reward/mean": 0.5 + 0.1 * step}
            row |= {"reward/correct_share": 0.5, "time/step": 2.0, "time/generate": 1.5, "time/learn": 0.5}
            writer.write(row | {"tokens/generated": 500.0}, step=step, stage="one", phase="rl")
    return run


def make_forked_run(run: Path, *, text: str = "") -> Path:
    """A step with a root of three turns, a branch behind its first, one behind the branch's second, and a sibling."""
    task = groups_of(text)[0][0]
    call = ToolCall(name=f"python{text}", arguments={"code": text})
    result = ToolResult(status="error", is_error=True, text=f"result{text}")

    def turns(num: int) -> list[FakeTurn]:
        calling = FakeTurn(ids=(2, 3), text=f"Call.{text}", calls=(call,), results=(result,), answer=(7,))
        return [*(calling for _ in range(num - 1)), FakeTurn(ids=(4,), text=f"So <answer>0</answer>{text}")]

    root = make_trajectory(*turns(3), task=task)
    branch = make_branch(root, 1, 1, *turns(2))
    made = [root, branch, make_branch(branch, 2, 1, *turns(1)), make_trajectory(*turns(1), task=task, sibling=1)]
    verdict = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=0.5)
    run.mkdir(parents=True)
    (run / "config.toml").write_text(CONFIG)
    records = [FakeRecord(trajectory=one, texts=[f"t{text}"] * len(one.segments), verdict=verdict) for one in made]
    write_step_file(records_file(run, 1), records)
    return run


def make_sick_run(run: Path) -> Path:
    """A run in which from step 15 of 20 on trajectories are cut, with the records of its last step."""
    run.mkdir(parents=True)
    rows = planted("truncation", first=15, steps=20)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_step(run, 20, groups_of())
    return run


def make_chart_run(run: Path) -> Path:
    """A stopped run of thirty steps without trajectories, with a gap, two steps of SFT, and a log."""
    run.mkdir(parents=True)
    (run / "config.toml").write_text('[run]\nname = "charts"\n[rl]\nlr = 0.5\n')
    start = {
        "status": "interrupted",
        "started": "2026-01-31T12:00:00+00:00",
        "command": ["rocstar", "train", "charts"],
    }
    (run / "manifest.json").write_text(json.dumps({"v": 1, "starts": [start]}))
    (run / "logs").mkdir()
    (run / "logs" / "console.log").write_text("2026-01-31T12:00:09Z ended: interrupted\n")
    with MetricsWriter(run / "metrics.jsonl", clock=lambda: 0.0) as writer:
        for step in (1, 2):
            writer.write({"loss/sft": 3.0 / step}, step=step, stage="sft", phase="sft")
        for step in range(1, 31):
            reward = 0.4123456789 if step == 30 else 0.5 + 0.1 * (step % 3)
            row = {"reward/mean": float("nan") if step == 10 else reward}
            writer.write(row, step=step, stage="one", phase="rl")
    return run


def groups_of(text: str = "") -> list[tuple[Task, Sequence[MadeSibling]]]:
    """The groups of each step."""
    drawn = Task(id=f"gcd-1{text}", source=f"gcd{text}", question=f"gcd of 84 and 36?{text}", answer=f"12{text}")
    alike = replace(drawn, id=f"sum-1{text}", source=f"sum{text}")
    hidden = replace(drawn, id="secret", question="the hidden question", meta={HIDDEN: True})
    return [(drawn, SIBLINGS), (alike, ALIKE), (hidden, ALIKE)]


def kept_in(page: str) -> dict[str, Any]:
    """What a page has in it, with its answers as values."""
    found = re.search(r'<script type="application/json" id="kept">(.*?)</script>', page)
    assert found is not None
    told = json.loads(found[1])
    answers = {asked: zlib.decompress(base64.b64decode(text)) for asked, text in told["answers"].items()}
    return told | {"answers": {asked: json.loads(text) for asked, text in answers.items()}}
