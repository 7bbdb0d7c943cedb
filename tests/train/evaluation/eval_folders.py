"""Evaluation folders as `rocstar eval --out` leaves them, written by the code that writes those; no model."""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocstar.engine.types import (
    Attempt,
    FinishReason,
    Group,
    Outcome,
    Scored,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)
from rocstar.train.evaluation.benchmarks.benchmark import Asking, Benchmark, Published
from rocstar.train.evaluation.evaluation_folder import AttemptsFile, EvaluationFolder, write_numbers
from rocstar.train.evaluation.provenance import settings_facts
from rocstar.train.evaluation.sets import EvaluationSet
from rocstar.train.recipe.config import Recipe
from tests.fakes.trajectories import LOST, FakeTurn, make_trajectory


def short_attempt(
    task: Task,
    sibling: int = 0,
    outcome: Outcome = Scored(reward=0.0, method="strict"),  # noqa: B008
    *,
    turns: tuple[Turn, ...] = (),
    finish: FinishReason = FinishReason.answered,
) -> Trajectory:
    """An attempt of one prompt token and one response token."""
    changed = {"turns": turns, "finish_reason": finish, "outcome": outcome}
    return make_trajectory(task=task, sibling=sibling, step=0, **changed)


def attempt_at(task: Task, text: str, *, is_truncated: bool = False) -> Attempt:
    turn = Turn(start=0, end=1, text=text, stopped=not is_truncated)
    return Attempt(task=task, turns=(turn,), is_truncated=is_truncated)


def short_group(task: Task, *outcomes: Outcome) -> Group:
    """A group of short attempts with these outcomes."""
    return Group(task=task, trajectories=tuple(short_attempt(task, k, o) for k, o in enumerate(outcomes)))


@dataclass(frozen=True, kw_only=True)
class MadeSet:
    """A set to make whose question q is solved with the chance that `ease` gives for q / num."""

    name: str
    num: int
    k: int
    ease: Callable[[float], float] = lambda at: at
    failing: float = 0.0
    """Share of attempts that fail."""
    hidden: bool = False
    text: str = ""
    """Added to every text of a model, a tool or the set."""
    dirty: Sequence[int] = ()
    """Questions among the training tasks."""
    calls: int = 2
    """Tool calls of an attempt at most."""
    size: float = 80.0
    """Tokens of an easy attempt."""
    answered: Callable[[int, int], bool] | None = field(default=None)
    """Whether attempt (question, sibling) is correct, in place of a draw."""


def make_folder(directory: Path, *sets: MadeSet, seed: int = 1) -> Path:
    """The folder of a finished evaluation of these sets."""
    rng, folder = random.Random(seed), EvaluationFolder(directory)
    chosen = [_set(made) for made in sets]
    for made, one in zip(sets, chosen, strict=True):
        groups = [_group(task, at, made, rng) for at, task in enumerate(one.tasks)]
        asyncio.run(_write(folder, one, groups))
    directory.joinpath("config.toml").write_text('[model]\npath = "models/tiny-135m"\n')
    dirty = {made.name: made.dirty for made in sets}

    def contaminants(one: EvaluationSet) -> dict[str, Any]:
        ids = [one.tasks[at].id for at in dirty[one.name]]
        rule = "exact match of the problem, whitespace and case aside"
        return {"rule": rule, "overlap": len(ids), "left_out_of_training": False, "questions": ids}

    write_numbers(chosen, folder, seed=7, step=0, contaminants=contaminants)
    write_manifest(directory, chosen)
    return directory


async def _write(folder: EvaluationFolder, chosen: EvaluationSet, groups: Sequence[Group]) -> None:
    file = AttemptsFile(folder.attempts(chosen.name), chosen.tasks, k=chosen.samples)
    await file.append(groups, lambda ids: f"{len(ids)} tokens")
    file.settle()


def _set(made: MadeSet) -> EvaluationSet:
    tasks = [
        Task(
            id=f"{made.name}/{at}",
            source=made.name,
            question=f"Question {at} of {made.name}: what is {at} plus {at + 1}?{made.text}",
            answer=f"{2 * at + 1}{made.text}",
        )
        for at in range(made.num)
    ]
    published = Published(repository="made/up", revision="0" * 40, file="", digest="")
    benchmark = Benchmark(
        name=made.name,
        title=made.name,
        num_questions=made.num,
        licence="made up",
        source=published,
        asking=Asking.agent,
        load=lambda path: tasks,
        hidden=made.hidden,
    )
    return EvaluationSet(
        name=made.name,
        tasks=tasks,
        samples=made.k,
        temperature=0.6,
        max_response_tokens=30_000,
        max_turns=30,
        benchmark=benchmark,
    )


def _group(task: Task, at: int, made: MadeSet, rng: random.Random) -> Group:
    ease = min(1.0, max(0.0, made.ease(at / max(made.num - 1, 1))))
    return Group(
        task=task, trajectories=tuple(_attempt(task, at, sibling, made, ease, rng) for sibling in range(made.k))
    )


def _attempt(task: Task, at: int, sibling: int, made: MadeSet, ease: float, rng: random.Random) -> Trajectory:
    is_correct = rng.random() < ease if made.answered is None else made.answered(at, sibling)
    is_cut = not is_correct and rng.random() < 0.25
    outcome: Outcome = Scored(reward=float(is_correct), is_correct=is_correct, method="strict")
    if rng.random() < made.failing:
        outcome = LOST
    length = int(made.size * (1.6 - ease) * rng.lognormvariate(0.0 if is_correct else 0.5, 0.45)) + 40
    turns = _turns(task, made, rng.randint(0, made.calls), is_correct, is_cut)
    return make_trajectory(
        FakeTurn(ids=(1,) * length),
        prompt=(1,) * 30,
        task=task,
        seed=7,
        step=0,
        sibling=sibling,
        turns=turns,
        finish_reason=FinishReason.max_tokens if is_cut else FinishReason.answered,
        outcome=outcome,
    )


def _turns(task: Task, made: MadeSet, calls: int, is_correct: bool, is_cut: bool) -> tuple[Turn, ...]:
    made_turns = []
    for number in range(calls):
        code = f"a = {number}\nprint(a + 1){made.text}"
        call = ToolCall(name="python", arguments={"code": code}, malformed=None)
        result = ToolResult(status="error" if number else "ok", is_error=bool(number), text=f"{number + 1}{made.text}")
        text = f"I try.{made.text}\n<tool_call>\n{json.dumps({'name': 'python'})}\n</tool_call>"
        made_turns.append(Turn(start=0, end=0, text=text, stopped=True, calls=(call,), results=(result,)))
    answer = task.answer if is_correct else "-1"
    last = f"So it is{made.text}" + ("" if is_cut else f" <answer>\\boxed{{{answer}}}</answer>")
    return (*made_turns, Turn(start=0, end=0, text=last, stopped=not is_cut, calls=(), results=()))


def write_manifest(directory: Path, sets: Sequence[EvaluationSet]) -> None:
    """As `rocstar eval` writes it, on a machine that never was."""
    entry = {
        "status": "complete",
        "started": "2026-11-22T10:00:00+00:00",
        "ended": "2026-11-22T10:42:10+00:00",
        "rocstar": "0.3.0",
        "python": "3.12.1",
        "torch": "2.9.0",
        "transformers": "5.2.0",
        "commit": "0123456789abcdef0123",
        "dirty": False,
        "command": ["rocstar", "eval", "models/tiny-135m", "--set", "aime24"],
        "evaluation": {
            "model": {"weights": "ab" * 32, "tokenizer": "cd" * 32, "template": "ef" * 32},
            "data": {
                one.name: {
                    "digest": "12" * 32,
                    "num_tasks": len(one.tasks),
                    "licence": "made up",
                    "repository": "made/up",
                    "revision": "0" * 40,
                    "is_known": True,
                }
                for one in sets
            },
            "verifier": {one.name: "34" * 32 for one in sets},
            "settings": settings_facts(Recipe(), sets, step=0) | {"packages": {"torch": "2.9.0"}},
            "sandbox": {"tier": "confined", "layers": ["landlock", "rlimits", "seccomp"]},
        },
    }
    directory.joinpath("manifest.json").write_text(json.dumps({"v": 1, "starts": [entry]}))
