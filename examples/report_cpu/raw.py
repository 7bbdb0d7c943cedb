"""Raw rows as one finds them: puzzles with the dirt of public problem sets, and a sloppy demonstrator's talk.

    problems.jsonl       copies in other typesetting, copies with another answer, fractions, proofs, figures,
                         another language, and questions of the exam
    exam.jsonl           held-out puzzles
    conversations.jsonl  demonstrations whose programs ran in the sandbox; some end too early, some call a
                         tool that they do not have

All is drawn from one seed: the same seed gives the same bytes.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rocstar.engine.types import Task
from rocstar.train.recipe.config import Recipe
from rocstar.train.serving.agent import open_sandbox
from rocstar.train.tasks.data import interleave_by_source, reasoning_gym_tasks
from rocstar.train.tasks.demonstrations import make_demonstrations
from rocstar.train.tasks.tools import demonstrated_tool, tool_box

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "gcd": {"min_value": 10, "max_value": 999, "exclude_answers": ["1"]},
    "lcm": {"min_value": 10, "max_value": 99},
    "products": {"min_digits": 2, "max_digits": 3},
    "chain_sum": {"min_terms": 3, "max_terms": 3, "min_digits": 2, "max_digits": 2},
    "count_primes": {"min_n": 10, "max_n": 999},
    "count_bits": {"min_n": 100, "max_n": 9999},
}
"""As in the quickstart."""
EXAM_SEED, PROBLEM_SEED, TALK_SEED = 7, 1, 1000
DIRT = {"copy": 0.08, "other_answer": 0.02, "fraction": 0.04, "proof": 0.02, "figure": 0.02, "german": 0.03}
"""Rows of each kind beside a puzzle."""
LEAKED = 0.25
"""Number of exam questions that are also among the problems."""
UNFINISHED, UNKNOWN_TOOL = 0.03, 0.02


def puzzles(each: int, seed: int) -> list[Task]:
    """So many puzzles of each family, spread evenly."""
    found = [
        task
        for family, options in FAMILIES.items()
        for task in reasoning_gym_tasks(family, options, size=each, seed=seed)
    ]
    return interleave_by_source(found)


def exam(each: int) -> list[dict[str, Any]]:
    """The questions that no task may be."""
    found = enumerate(puzzles(each, EXAM_SEED))
    return [{"id": f"exam-{k}", "problem": task.question, "answer": task.answer} for k, task in found]


def problems(each: int, asked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Problems in English and some in German, in no order."""
    rng = random.Random("problems")
    rows = [row for k, task in enumerate(puzzles(each, PROBLEM_SEED)) for row in _with_dirt(k, task, rng)]
    for k, question in enumerate(asked):
        if rng.random() < LEAKED:
            rows.append(_row(f"leak-{k}", typeset(question["problem"]), question["answer"]))
    rng.shuffle(rows)
    return rows


def _with_dirt(number: int, task: Task, rng: random.Random) -> Iterator[dict[str, Any]]:
    """A puzzle and its surrounding text."""
    answer = rng.choice([task.answer, f"\\boxed{{{task.answer}}}", f"{task.answer}.0"])
    yield _row(f"a-{number}", task.question, answer)
    odd = 2 * rng.randrange(10_000) + 1
    pictured = f"In the diagram below, a side has {odd} dots. How many dots?"
    beside = {
        "copy": _row(f"copy-{number}", typeset(task.question), task.answer),
        "other_answer": _row(f"other-{number}", task.question, str(int(task.answer) + 1)),
        "fraction": _row(f"fraction-{number}", f"What is half of {odd}?", f"{odd}/2"),
        "proof": _row(f"proof-{number}", f"Prove that {odd} is an odd number.", "1"),
        "figure": _row(f"figure-{number}", pictured, str(odd)),
        "german": _row(f"german-{number}", f"Was ist {odd} + 1?", str(odd + 1)) | {"lang": "de"},
    }
    yield from (row for kind, row in beside.items() if rng.random() < DIRT[kind])


def _row(name: str, problem: str, answer: str) -> dict[str, Any]:
    return {"id": name, "problem": problem, "answer": answer, "lang": "en"}


def typeset(question: str) -> str:
    """The same question as another source writes it."""
    return re.sub(r"(\d+)", r"$\1$", question).replace(" * ", " \\times ")


async def conversations(recipe: Recipe, each: int, number: int) -> list[dict[str, Any]]:
    """So many demonstrations on so many puzzles of each family, with real tool results."""
    async with open_sandbox(recipe) as sandbox:
        rows = await make_demonstrations(
            puzzles(each, TALK_SEED),
            number,
            seed=recipe.run.seed,
            sandbox=sandbox,
            tool=demonstrated_tool(recipe),
            noise=recipe.sft.noise,
        )
    tools = [_without_input(schema) for schema in tool_box(recipe).schemas]
    rng = random.Random("conversations")
    return [_spoilt({"id": f"talk-{k}", **row, "tools": tools}, rng) for k, row in enumerate(rows)]


def _without_input(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The tool as the demonstrator knows it: standard input may be left out."""
    function = schema["function"]
    parameters = {**function["parameters"], "required": ["code"]}
    return {**schema, "function": {**function, "parameters": parameters}}


def _spoilt(row: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Some conversations end before the answer, some call unknown tools."""
    draw = rng.random()
    if draw < UNFINISHED:
        return {**row, "messages": row["messages"][: -1 if len(row["messages"]) > 2 else 1]}
    if draw < UNFINISHED + UNKNOWN_TOOL:
        messages = json.loads(json.dumps(row["messages"]))
        for message in messages:
            for call in message.get("tool_calls", ()):
                call["function"]["name"] = "calculator"
        return {**row, "messages": messages}
    return row
