"""IFEval (arXiv 2311.07911): 541 prompts with 834 instructions of 25 kinds that a program can check.

    row ──read──> task ──(chat, no tool)──> final text ──check_instructions──> reward: all followed, strictly
                                                               └──> columns: loose, per instruction, fixed

The reward is the strict prompt-level verdict. The checkers are reimplemented, because the original's need
NLTK data; docs/reference/benchmarks.md lists the intended differences.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.engine.rollout.rollout import Judge
from rocstar.engine.types import Attempt, Outcome, Scored, Task
from rocstar.train.evaluation.benchmarks import benchmark
from rocstar.train.evaluation.benchmarks.ifeval.instructions import (
    AT_LEAST,
    KINDS,
    LESS_THAN,
    check_instructions,
    detectors,
    to_instructions,
)
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.rows import rows_from

NAME = "ifeval"
_RELATIONS = frozenset({"relation", "let_relation", "capital_relation"})
_PATTERNS = frozenset({"keyword", "keywords", "forbidden_words", "section_spliter", "postscript_marker"})


def load_tasks(path: Path) -> list[Task]:
    """Return the tasks of a copy, in its order: JSON Lines or Parquet with the published columns.

    Raises:
        ConfigError: a row has another form, an unknown instruction, or lacks an argument.
    """
    return [_task(row, where) for where, row in rows_from(str(path), Path(), split="train")]


def _task(row: Any, where: str) -> Task:
    try:
        key, prompt = str(row["key"] if "key" in row else row["id"]), row["prompt"]
        names, given = list(row["instruction_id_list"]), list(row["kwargs"])
    except (KeyError, TypeError):
        raise ConfigError(
            f"{where} lacks the columns key, prompt, instruction_id_list and kwargs. Pass a copy of IFEval."
        ) from None
    if not isinstance(prompt, str) or not names or len(names) != len(given):
        raise ConfigError(f"{where}: {len(names)} instructions with {len(given)} kwargs. Pass a copy of IFEval.")
    arguments = [_arguments(name, kwargs, where) for name, kwargs in zip(names, given, strict=True)]
    meta = {"key": key.removeprefix("ifeval-"), "instruction_id_list": names, "kwargs": arguments}
    return Task(id=f"ifeval-{meta['key']}", source=NAME, question=prompt, answer="", meta=meta)


def _arguments(name: Any, given: Any, where: str) -> dict[str, Any]:
    """Return the instruction's arguments. A copy of the hub has a column for each argument of any kind:
    None if unused."""
    kind = KINDS.get(name)
    if kind is None:
        raise ConfigError(f"{where}: {name!r} is not one of the {len(KINDS)} kinds of instructions of IFEval")
    found = {key: value for key, value in dict(given or {}).items() if value}
    arguments: dict[str, Any] = {}
    for key, form in kind.arguments.items():
        value = found.get(key)
        if form is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, form) or _is_unfit(key, value):
            raise ConfigError(f"{where}: {name} has {key} = {value!r}, which must be {form.__name__}")
        arguments[key] = value
    if arguments.get("nth_paragraph", 1) > arguments.get("num_paragraphs", 1):
        raise ConfigError(f"{where}: {name} asks for paragraph {arguments['nth_paragraph']} of fewer")
    return arguments


def _is_unfit(key: str, value: Any) -> bool:
    if key in _RELATIONS:
        return value not in (AT_LEAST, LESS_THAN)
    if key == "letter":
        return len(value.strip()) != 1
    if key in _PATTERNS:
        try:
            for pattern in value if isinstance(value, list) else [value]:
                re.compile(pattern)
        except (re.error, TypeError):
            return True
    return False


class InstructionJudge:
    """Scores 1 if the final text follows every instruction strictly; `method` has the count."""

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        """Check the instructions in a thread. TimeoutError at `deadline`, a `loop.time()`."""
        if attempt.is_truncated:
            return Scored(reward=0.0, method="truncated")
        instructions = to_instructions(attempt.task.meta)
        async with asyncio.timeout_at(deadline):
            verdicts = await asyncio.to_thread(
                check_instructions, instructions, benchmark.strip_thinking(attempt.turns)
            )
        count = f"{sum(verdicts.strict)} of {len(instructions)} followed"
        return Scored(reward=float(all(verdicts.strict)), method=count)


def measures(attempt: Attempt) -> Mapping[str, float]:
    """Return the further columns, zeros for a truncated attempt.

    `instruction_strict` and `instruction_loose` are shares of the prompt's instructions; the original
    averages over all 834, as `pooled` does.
    """
    instructions = to_instructions(attempt.task.meta)
    if attempt.is_truncated:
        return dict.fromkeys(("loose", "instruction_strict", "instruction_loose", "fixed"), 0.0)
    verdicts = check_instructions(instructions, benchmark.strip_thinking(attempt.turns))
    return {
        "loose": float(all(verdicts.loose)),
        "instruction_strict": sum(verdicts.strict) / len(instructions),
        "instruction_loose": sum(verdicts.loose) / len(instructions),
        "fixed": float(all(verdicts.fixed)),
    }


def pooled(scored: Sequence[tuple[Task, Scored, Mapping[str, float]]]) -> Mapping[str, float]:
    """Return the original's instruction-level accuracies: over all instructions, not over prompts."""
    counts = [len(task.meta["instruction_id_list"]) for task, _, _ in scored]
    if not counts:
        return {}
    return {
        f"{name}_pooled": sum(count * columns[name] for count, (_, _, columns) in zip(counts, scored, strict=True))
        / sum(counts)
        for name in ("instruction_strict", "instruction_loose")
    }


def _judge() -> Judge:
    detectors()
    return InstructionJudge()


IFEVAL = benchmark.benchmark_of(
    NAME, load=load_tasks, judge=_judge, near_miss=benchmark.empty_answer, measures=measures, pooled=pooled
)
