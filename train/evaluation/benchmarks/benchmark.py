"""What a built-in evaluation set is: data with a digest, a way of asking, a rule of scoring.

    source ──load──> tasks ──(agent | chat | completion)──> attempts ──judge──> Outcome
                                                               └──measures──> further columns per attempt

No problem text is part of this package: a set is read from the hub at a pinned revision or from a local copy,
and its digest says whether it is the set that others reported on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rocstar.engine.chat.toolcalls import THOUGHT, said
from rocstar.engine.plain_json import to_plain
from rocstar.engine.rollout.rollout import Counterpart, Judge
from rocstar.engine.types import Attempt, Scored, Task, Turn


class Asking(StrEnum):
    """How the question reaches the policy."""

    agent = "agent"
    """by the recipe's template, with the recipe's tools"""
    chat = "chat"
    """as a chat message by the same template, without any tool"""
    functions = "functions"
    """as chat messages with the functions of the task itself (`meta["functions"]`, as a chat template takes
    tools), which nobody executes: the first turn that calls some ends the attempt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Where a set is published, pinned."""

    repository: str
    """of the hub, OWNER/NAME; empty for a set that has to be given as a local file"""
    revision: str
    """commit of that repository"""
    file: str
    """path in it, or the form of the local file in words"""
    digest: str
    """sha256 over the canonical JSON of the rows that scoring reads; empty where no copy could be read"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The settings under which results are reported (arXiv 2508.20722, 5.1); a recipe may set others."""

    samples: int = 16
    temperature: float = 0.6
    max_response_tokens: int = 30_000
    max_turns: int = 30


def no_measures(attempt: Attempt) -> Mapping[str, float]:
    """Return no further column."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A built-in evaluation set.

    Invariant: `load` of a file with the digest of `source` gives `num_questions` tasks, and `judge` finds
    each task's own gold right (`gold`).
    """

    name: str
    title: str
    num_questions: int
    licence: str
    source: Published
    asking: Asking
    load: Callable[[Path], Sequence[Task]]
    """tasks of a local copy, in the published order; ConfigError for a file of another form"""
    judge: Callable[[], Judge] | None = None
    """makes the judge; None = the recipe's own reward"""
    describe: Callable[[], Mapping[str, Any]] | None = None
    """what a verdict depends on besides code and answer, for the manifest: who judges, in whose words"""
    gold: Callable[[Task], str | Sequence[str]] | None = None
    """a policy text that has to be found right, or one for each of its turns; None = the task's answer in the
    template's answer block, and nothing where the task has no answer"""
    near_miss: Callable[[Task], str | Sequence[str]] | None = None
    """a policy text that has to be found wrong, or one for each of its turns; None = a number beside the
    answer"""
    counterpart: Callable[[], Counterpart] | None = None
    """makes who answers the policy in the place of its tools: a simulated user, simulated functions"""
    measures: Callable[[Attempt], Mapping[str, float]] = no_measures
    """further columns of an attempt, 0 to 1, averaged as the reward is (pure; read again at every rescore)"""
    overall: Callable[[Mapping[str, float]], Mapping[str, float]] | None = None
    """from the mean by category (`Task.meta["category"]`) to composed scores, where a set defines some"""
    pooled: Callable[[Sequence[tuple[Task, Scored, Mapping[str, float]]]], Mapping[str, float]] | None = None
    """from all scored attempts, each with its measures, to scores that are no mean of attempts' values"""
    hidden: bool = False
    """whether its licence asks that questions are not shown: reports need --reveal"""
    defaults: Defaults = field(default_factory=Defaults)


LOCAL = "local"
"""The key of `Task.meta` for what depends on where a copy lies."""


def tasks_digest(tasks: Sequence[Task]) -> str:
    """SHA-256 over the canonical JSON of question, answer, context and meta, in order.

    Ids are left out, and LOCAL of `meta`: where a copy lies is no part of it.
    """
    rows = [
        {
            "question": task.question,
            "answer": task.answer,
            "context": [to_plain(dict(message)) for message in task.context],
            "meta": to_plain({key: value for key, value in task.meta.items() if key != LOCAL}),
        }
        for task in tasks
    ]
    return _sha256(rows)


def answers_digest(answers: Iterable[str]) -> str:
    """SHA-256 over the sorted answers: copies differ in order and in the wording of problems, not here."""
    return _sha256(sorted(answers))


def _sha256(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def strip_thinking(turns: Sequence[Turn]) -> str:
    """What the last turn says, without the white space behind a thought."""
    text = said(turns[-1:])
    return text if turns and text == turns[-1].text else text.lstrip()


def empty_answer(task: Task) -> str:
    """A thought and no word: it follows no instruction and wins no game."""
    return f"{THOUGHT[0]}{task.question}{THOUGHT[1]}"
