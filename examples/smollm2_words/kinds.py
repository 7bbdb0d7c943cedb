"""The kinds of problems: their sources, and the demonstrations of a mediocre demonstrator for some of them.

demonstrated   the cold start shows them, with a right program in two of five
candidates     reinforcement may have them, if the model solves some after the cold start and not most
unseen         neither: they measure transfer
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import stories

from rocstar.engine.types import Task
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.data import id_of_task, interleave_by_source, reasoning_gym_tasks
from rocstar.train.tasks.demonstrations import Programs, programs_for
from rocstar.train.tasks.rows import jsonl_rows

GSM8K = "gsm8k_short"
"""The short questions of GSM8K's training part."""
SHORT_WORDS = 32
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "basic_arithmetic": {"min_terms": 2, "max_terms": 4, "max_digits": 3, "operators": ["+", "-", "*"]},
    "leg_counting": {"min_animals": 2, "max_animals": 3},
    "simple_equations": {"min_terms": 2, "max_terms": 2},
    "simple_geometry": {"min_sides": 3, "max_sides": 5},
    "gsm_symbolic": {},
    "products": {"min_digits": 2, "max_digits": 3},
    "lcm": {"min_value": 10, "max_value": 99},
    "chain_sum": {"min_terms": 3, "max_terms": 3, "min_digits": 2, "max_digits": 2},
}
"""Kinds from reasoning-gym's families."""
CANDIDATES = (
    stories.KIND,
    "basic_arithmetic",
    "leg_counting",
    "simple_equations",
    "simple_geometry",
    "gsm_symbolic",
    GSM8K,
)
UNSEEN = ("products", "lcm")


def problems(kind: str, count: int, *, seed: int) -> list[Task]:
    """So many problems of a kind that is made, not read."""
    if kind == stories.KIND:
        return stories.stories(count, seed=seed)
    return reasoning_gym_tasks(kind, OPTIONS[kind], size=count, seed=seed)


def gsm8k(path: Path, *, source: str, words: int = 0) -> list[Task]:
    """The problems of a JSONL file with `problem` or `question`, and `answer`; with `words`, the short ones.

    Raises:
        ConfigError: the file has none.
    """
    found = []
    for _, row in jsonl_rows(path):
        question = str(row.get("problem", row.get("question", ""))).strip()
        answer = str(row["answer"]).rpartition("####")[2].strip().replace(",", "")
        if question and (not words or len(question.split()) <= words):
            name = id_of_task(question, answer)
            found.append(Task(id=name, source=source, question=question, answer=answer))
    if not found:
        raise ConfigError(f"{str(path)!r} has no problem; give JSON Lines with 'problem' and 'answer'")
    return found


def row_of(task: Task) -> dict[str, str]:
    """As a recipe's data reads it."""
    name = id_of_task(task.question, task.answer)  # as the recipe will call it
    return {"id": name, "question": task.question, "answer": task.answer, "data_source": task.source}


def mixed(tasks: Sequence[Task]) -> list[Task]:
    """The kinds in turn."""
    return interleave_by_source(tasks)


# ---------------------------------------------------------------- demonstrations


def programs_of(task: Task) -> Programs:
    """Right and wrong programs of a kind that is demonstrated."""
    return DEMONSTRATED.get(task.source, programs_for)(task)


def _basic_arithmetic(task: Task) -> Programs:
    expression = task.question.removeprefix("Calculate ").removesuffix(".")
    numbers = ", ".join(re.findall(r"\d+", expression))
    wrong = (f"print(sum([{numbers}]))", f"print(max({numbers}))")
    return Programs(right=(f"print({expression})",), wrong=wrong)


def _leg_counting(task: Task) -> Programs:
    counts: Mapping[str, int] = task.meta["entry"]["metadata"]["animals"]
    legs = _legs()
    right = " + ".join(f"{number} * {legs[animal]}" for animal, number in counts.items())
    some = " + ".join(str(number) for number in counts.values())
    return Programs(right=(f"print({right})",), wrong=(f"print({some})", f"print(({some}) * 4)"))


def _legs() -> Mapping[str, int]:
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    found: Mapping[str, int] = ANIMALS
    return found


def _simple_equations(task: Task) -> Programs:
    """Problems `a*x + b = c` and `a*x - b = c`."""
    match = re.search(r"(\d+)\*\w ([+-]) (\d+) = (-?\d+)", task.question)
    if match is None:
        raise ConfigError(f"no demonstrator for {task.question!r}")
    a, sign, b, c = match.groups()
    other = "-" if sign == "+" else "+"
    return Programs(
        right=(f"print(({c} {other} {b}) // {a})",),
        wrong=(f"print(({c} {sign} {b}) // {a})", f"print({c} {other} {b})"),
    )


def _simple_geometry(task: Task) -> Programs:
    told = task.meta["entry"]["metadata"]
    sides, angles = told["n_sides"], [f"{angle:g}" for angle in told["known_angles"]]
    return Programs(
        right=(f"print(180 * ({sides} - 2) - {' - '.join(angles)})",),
        wrong=(f"print(180 * {sides} - {' - '.join(angles)})", f"print({' + '.join(angles)})"),
    )


DEMONSTRATED: Mapping[str, Callable[[Task], Programs]] = {
    stories.KIND: stories.programs_of,
    "basic_arithmetic": _basic_arithmetic,
    "leg_counting": _leg_counting,
    "simple_equations": _simple_equations,
    "simple_geometry": _simple_geometry,
    "chain_sum": programs_for,
}


def demonstrable(task: Task) -> bool:
    """Whether the demonstrator can read the question."""
    try:
        programs_of(task)
    except ConfigError:
        return False
    return True
