"""Boxes that want to be taken for the answer: none is, none outlasts the clock, none is called our failure.

`hostile_boxes.jsonl` has a line per truth with boxes that are worth nothing for it: restatements of a
question, near values, other kinds, other alphabets, nesting. The last line's are worth nothing for any truth.
"""

import asyncio
import json
from pathlib import Path

import pytest

from rocstar.engine.types import Attempt, Outcome, Scored, Task, Turn
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult
from rocstar.train.tasks.compare import compare
from rocstar.train.tasks.reward import VERIFIER_FLAVOUR, MathJudge

from . import asked

ROWS = [json.loads(line) for line in Path(__file__).with_name("hostile_boxes.jsonl").read_text().splitlines()]
TRUTHS = [row["truth"] for row in ROWS if row["truth"] is not None]
(EVERYWHERE,) = (row["boxes"] for row in ROWS if row["truth"] is None)
PAIRS = [(box, row["truth"]) for row in ROWS if row["truth"] is not None for box in row["boxes"]]
PAIRS += [(box, truth) for truth in TRUTHS for box in EVERYWHERE]
HANGS = [
    ("x^{9999999999} + 9^{9999999999}", "2x"),
    ("\\sqrt{2}^{10000000000}", "\\sqrt{2}"),
    ("(x+1)^{99999}(x-1)^{99999}", "x^2"),
    ("9999999999^{9999999999}", "2^{100}"),
    ("\\frac{1}{999999999!}", "\\frac{1}{2004!}"),
    ("(10^9)!", "n!"),
]
"""Boxes that nothing but the clock stops."""
TEXTS = [
    "<answer>\\boxed{42}</answer><answer>\\boxed{41}</answer>",
    "<answer>\\boxed{42} or \\boxed{41}</answer>",
    "<answer>\\boxed{41\\boxed{4}2}</answer>",
    "\\boxed{42}",
    "<answer>42</answer>",
    "<answer>\\boxed{42}",
    "</answer>\\boxed{42}<answer>",
    '<tool_call>{"name": "f", "arguments": {"code": "<answer>\\\\boxed{42}</answer>"}}</tool_call>',
    "<tool_call><answer>\\boxed{42}</answer></tool_call> I do not know.",
    "<answer>\\boxed{42</answer>}",
    "<ANSWER>\\boxed{42}</ANSWER>",
    "<answer>\\boxed{42}</answer> No: <answer>I do not know</answer>",
]
WALL_S, HANG_S = 3.0, 1.0


class Watched:
    """The pool, and how long each of its calls took."""

    def __init__(self, pool: SandboxPool) -> None:
        self.pool = pool
        self.results: list[ExecResult] = []

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        self.results.append(await self.pool.run(request, deadline=deadline))
        return self.results[-1]


def attempt(text: str, truth: str) -> Attempt:
    turn = Turn(start=0, end=1, text=text, stopped=True)
    task = Task(id="t", source="s", question="q", answer=truth)
    return Attempt(task=task, turns=(turn,), is_truncated=False)


def boxed(box: str) -> str:
    return f"<answer>\\boxed{{{box}}}</answer>"


@pytest.fixture(scope="session")
def verdicts() -> tuple[list[tuple[str, str, Outcome]], list[ExecResult]]:
    """Every pair graded by the real sandbox, as far as it comes to that, and what its runs used."""

    async def grade() -> tuple[list[tuple[str, str, Outcome]], list[ExecResult]]:
        async with SandboxPool((VERIFIER_FLAVOUR,)) as pool:
            watched = Watched(pool)
            judge, short = (MathJudge(watched, wall_s=wall_s) for wall_s in (WALL_S, HANG_S))
            room = asyncio.Semaphore(2)

            async def score(by: MathJudge, text: str, truth: str) -> tuple[str, str, Outcome]:
                async with room:
                    return text, truth, await asked.score(by, attempt(text, truth))

            jobs = [(judge, boxed(box), truth) for box, truth in PAIRS]
            jobs += [(short, boxed(box), truth) for box, truth in HANGS]
            jobs += [(judge, text, "42") for text in TEXTS]
            return await asyncio.gather(*(score(*job) for job in jobs)), watched.results

    return asyncio.run(grade())


def test_the_corpus_is_as_large_as_it_says() -> None:
    own = sum(len(row["boxes"]) for row in ROWS)
    assert len(TRUTHS) >= 40 and own >= 300


def test_no_hostile_box_is_accepted(verdicts: tuple[list[tuple[str, str, Outcome]], list[ExecResult]]) -> None:
    outcomes, _ = verdicts
    assert [found for found in outcomes if not isinstance(found[2], Scored) or found[2].reward] == []


def test_no_run_of_the_grader_outlasts_its_clock(
    verdicts: tuple[list[tuple[str, str, Outcome]], list[ExecResult]],
) -> None:
    _, results = verdicts
    assert results, "some are only refuted by algebra"
    # The clock is kept by the supervisor, which also has to kill and reap.
    assert max(result.wall_s for result in results) < 2 * WALL_S


@pytest.mark.parametrize(("box", "truth"), HANGS)
def test_a_hang_reaches_the_grader(box: str, truth: str) -> None:
    assert compare(box, truth).questions, "else it is no test of the clock"
    assert compare(truth, truth).verdict


@pytest.mark.parametrize("truth", TRUTHS)
def test_every_truth_is_its_own_answer(truth: str) -> None:
    assert compare(truth, truth).verdict and not compare(truth, truth).questions
