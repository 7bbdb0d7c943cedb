"""Easy stories about numbers: one expression answers each, and a hasty reader writes another one.

All is drawn from one seed: the same seed gives the same stories.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rocstar.engine.types import Task
from rocstar.train.tasks.data import content_id
from rocstar.train.tasks.demonstrations import Programs

KIND = "stories"
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kim", "Lena")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pencils", "shells", "stamps", "stickers")
Numbers = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Story:
    """A text with placeholders {n}, {m}, {o} and numbers; the expression of its answer; the expression of a
    hasty reader. `numbers` draws valid values: answers are never negative, and divisions leave no remainder.
    """

    text: str
    right: str
    wrong: tuple[str, ...]
    numbers: Callable[[random.Random], Numbers]


def _two(rng: random.Random) -> Numbers:
    return {"a": rng.randint(11, 99), "b": rng.randint(3, 30)}


def _less(rng: random.Random) -> Numbers:
    a = rng.randint(20, 99)
    return {"a": a, "b": rng.randint(3, a - 2)}


def _small(rng: random.Random) -> Numbers:
    return {"a": rng.randint(3, 25), "b": rng.randint(3, 12), "c": rng.randint(2, 9)}


def _shared(rng: random.Random) -> Numbers:
    a = rng.randint(3, 12)
    return {"a": a, "c": a * rng.randint(4, 25)}


def _paid(rng: random.Random) -> Numbers:
    a, b = rng.randint(3, 15), rng.randint(3, 6)
    return {"a": a, "b": b, "c": 100}


def _kept(rng: random.Random) -> Numbers:
    a = rng.randint(20, 90)
    return {"a": a, "b": rng.randint(5, 15), "c": rng.randint(3, 12)}


STORIES = (
    Story(
        "{n} has {a} {o}. {m} gives {n} {b} more. How many {o} does {n} have now?",
        "{a} + {b}",
        ("{a} - {b}", "{a} * {b}"),
        _two,
    ),
    Story(
        "{n} had {a} {o} and gave {b} of them to {m}. How many {o} does {n} have left?",
        "{a} - {b}",
        ("{a} + {b}", "{b} - {a}"),
        _less,
    ),
    Story(
        "There are {a} boxes with {b} {o} in each of them. How many {o} are there in all?",
        "{a} * {b}",
        ("{a} + {b}", "{a} - {b}"),
        _two,
    ),
    Story(
        "{n} shares {c} {o} equally among {a} friends. How many {o} does each friend get?",
        "{c} // {a}",
        ("{c} - {a}", "{c} * {a}"),
        _shared,
    ),
    Story(
        "One book costs {a} dollars. {n} buys {b} books and pays with {c} dollars. "
        "How many dollars does {n} get back?",
        "{c} - {a} * {b}",
        ("{c} - {a} - {b}", "{a} * {b}"),
        _paid,
    ),
    Story(
        "{n} reads {a} pages every day. How many pages does {n} read in {b} weeks?",
        "{a} * 7 * {b}",
        ("{a} * {b}", "{a} + 7 * {b}"),
        _small,
    ),
    Story(
        "{n} has {a} {o}. {m} has {b} more {o} than {n}. How many {o} do they have together?",
        "{a} + {a} + {b}",
        ("{a} + {b}", "{a} * {b}"),
        _two,
    ),
    Story(
        "{n} has {a} {o}. {m} has {c} times as many. How many {o} do they have together?",
        "{a} + {a} * {c}",
        ("{a} * {c}", "{a} + {c}"),
        _small,
    ),
    Story(
        "{n} has {a} bags with {b} {o} in each, and {c} {o} besides. How many {o} does {n} have?",
        "{a} * {b} + {c}",
        ("{a} + {b} + {c}", "{a} * {b} * {c}"),
        _small,
    ),
    Story(
        "{n} earns {a} dollars every week and spends {b} dollars of it. "
        "How many dollars has {n} saved after {c} weeks?",
        "({a} - {b}) * {c}",
        ("{a} * {c} - {b}", "{a} * {c}"),
        _kept,
    ),
)


def stories(count: int, *, seed: int) -> list[Task]:
    """So many stories, no two alike; `meta` has their programs."""
    rng, found = random.Random(f"stories/{seed}"), dict[str, Task]()
    while len(found) < count:
        story = STORIES[len(found) % len(STORIES)]
        numbers = story.numbers(rng)
        first, second = rng.sample(NAMES, 2)
        question = story.text.format(n=first, m=second, o=rng.choice(THINGS), **numbers)
        right = story.right.format(**numbers)
        answer = str(eval(right, {"__builtins__": {}}))  # of the texts above
        name = content_id("", question, answer)
        programs = {"right": [right], "wrong": [one.format(**numbers) for one in story.wrong]}
        found.setdefault(
            name, Task(id=name, source=KIND, question=question, answer=answer, meta={"programs": programs})
        )
    return list(found.values())


def programs_of(task: Task) -> Programs:
    """Return a program that prints the answer of a story, and one that does not."""
    found = {side: tuple(f"print({one})" for one in told) for side, told in task.meta["programs"].items()}
    return Programs(right=found["right"], wrong=found["wrong"])
