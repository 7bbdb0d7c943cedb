"""A built-in evaluation set: data with a digest, a prompt and a scoring rule.

    source ──load──> tasks ──(agent | chat | functions)──> attempts ──judge──> Outcome
                                                              └──measures──> further columns per attempt

No problem text is part of this package: a set is read from the hub at a pinned revision or from a local copy.
Its digest shows if it is the set of published results.
"""

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rocstar.engine.chat.toolcalls import THOUGHT, spoken_text
from rocstar.engine.plain_json import to_plain
from rocstar.engine.rollout.rollout import Counterpart, Judge
from rocstar.engine.types import Attempt, Scored, Task, Turn


class Asking(StrEnum):
    """How the policy is prompted."""

    agent = "agent"
    """by the recipe's template, with the recipe's tools"""
    chat = "chat"
    """as a chat message by the same template, without any tool"""
    functions = "functions"
    """as chat messages with the functions of the task (`meta["functions"]`, as chat templates take tools).
    They are not executed: the first turn with calls ends the attempt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The pinned source of a set."""

    repository: str
    """on the hub, OWNER/NAME; "" for a set that must be given as a local file"""
    revision: str
    """commit of that repository"""
    file: str
    """path in it, or a description of the local file"""
    digest: str
    """SHA-256 over the canonical JSON of the tasks; "" if no copy was available"""

    def is_known(self, digest: str) -> bool | None:
        """True if tasks with this digest are those of published figures, None if that is unknown."""
        return digest == self.digest if self.digest else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The settings of published results (arXiv 2508.20722, 5.1); a recipe may set others."""

    samples: int = 16
    temperature: float = 0.6
    max_response_tokens: int = 30_000
    max_turns: int = 30


def answer_block(answer: str) -> str:
    """Return the text of a final turn with this answer."""
    return f"<answer>\\boxed{{{answer}}}</answer>"


def gold_answer(task: Task) -> str | None:
    return answer_block(task.answer) if task.answer else None


def next_number(task: Task) -> str | None:
    """Return the answer plus one in an answer block."""
    answer = task.answer
    if not answer:
        return None
    plain = answer.removeprefix("-")
    return answer_block(str(int(answer) + 1) if plain.isdecimal() else f"({answer})+1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A built-in evaluation set.

    Invariant: `load` of a file with the digest of `source` returns `num_questions` tasks, and `judge` accepts
    each task's gold (`gold`).
    """

    name: str
    title: str
    num_questions: int
    licence: str
    source: Published
    asking: Asking
    load: Callable[[Path], Sequence[Task]]
    """returns the tasks of a local copy, in the published order; ConfigError for a file of another form"""
    judge: Callable[[], Judge] | None = None
    """makes the judge; None = the recipe's own reward"""
    describe: Callable[[], Mapping[str, Any]] | None = None
    """returns the inputs of a verdict besides code and answer, for the manifest: the judging model and its
    prompt"""
    gold: Callable[[Task], str | Sequence[str] | None] = gold_answer
    """returns a correct text, or one for each turn; None without a unique answer"""
    near_miss: Callable[[Task], str | Sequence[str] | None] = next_number
    """returns a slightly wrong text, or one for each turn"""
    counterpart: Callable[[], Counterpart] | None = None
    """makes the counterpart that answers the policy instead of tools: a simulated user, simulated
    functions"""
    measures: Callable[[Attempt], Mapping[str, float]] | None = None
    """further columns of an attempt, 0 to 1, averaged like the reward (pure; computed again at every
    rescore)"""
    overall: Callable[[Mapping[str, float]], Mapping[str, float]] | None = None
    """from the means by category (`Task.meta["category"]`) to composed scores"""
    pooled: Callable[[Sequence[tuple[Task, Scored, Mapping[str, float]]]], Mapping[str, float]] | None = None
    """from all scored attempts with their measures to scores that are not means over attempts"""
    hidden: bool = False
    """True if the licence asks that questions are not shown: reports need --reveal"""
    defaults: Defaults = field(default_factory=Defaults)


SETS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("sets.toml").read_text(encoding="utf-8"))
"""The sets by name. The comment at the top of the file describes the keys."""


def benchmark_of(name: str, **work: Any) -> Benchmark:
    """Return the set of that name. work: its functions, by the names of `Benchmark`."""
    row = SETS[name]
    return Benchmark(
        name=name,
        **{key: row[key] for key in ("title", "num_questions", "licence")},
        source=Published(**{key: row[key] for key in ("repository", "revision", "file", "digest")}),
        asking=Asking(row["prompt"]),
        hidden=row.get("hidden", False),
        defaults=Defaults(**row.get("defaults", {})),
        **work,
    )


LOCAL = "local"
"""The key of `Task.meta` for values that depend on the location of a copy."""


def tasks_digest(tasks: Sequence[Task]) -> str:
    """Return the SHA-256 over the canonical JSON of question, answer, context and meta, in order.

    Ids and the LOCAL part of `meta` are excluded.
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
    return json_digest(rows)


def json_digest(value: object) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def strip_thinking(turns: Sequence[Turn]) -> str:
    """Return the last turn's text after its thinking block, without leading white space."""
    text = spoken_text(turns[-1:])
    return text if turns and text == turns[-1].text else text.lstrip()


def empty_answer(task: Task) -> str:
    """Return a thinking block without an answer: it follows no instruction and wins no game."""
    return f"{THOUGHT[0]}{task.question}{THOUGHT[1]}"
