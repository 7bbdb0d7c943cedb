"""Tasks of reasoning-gym families, JSONL and Parquet files, and hub data sets. Imports no torch.

A task's id is a hash of its content, so it survives reshuffling and moving; equal rows get a running suffix,
and nothing is dropped silently. Bad input raises ConfigError with the value, the reason and the fix.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocstar.engine.chat.boundaries import ChatError
from rocstar.engine.types import Task
from rocstar.sandbox.child.lazy_import import install_lazy_import
from rocstar.sandbox.command_line import suggest
from rocstar.train.recipe.data_config import SEEDS, DataConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.messages import read_messages, short_repr
from rocstar.train.tasks.rows import REASONING_GYM, Rows, meta_of, name_of, rows_from

if TYPE_CHECKING:
    from types import ModuleType

_DRAWS_PER_TASK = 20
MAX_MIXED = 1_000_000
"""The maximum number of tasks that weights make by repetition."""
_SOURCE_COLUMN = "data_source"
"""The column with a row's source, in data sets that combine several."""


def load_tasks(config: DataConfig, *, base: Path, check: Callable[[Task], None] = lambda task: None) -> list[Task]:
    """Return the tasks of a source, in its order. Relative paths start at `base`. Raises ConfigError.

    `check` is called with every row's task and refuses it with a ChatError. If the first `limit` rows have
    one source, no further rows are read; rows of several sources must be mixed first, so all are read.
    """
    if config.source == REASONING_GYM:
        tasks = [
            task
            for family, options in config.families.items()
            for task in reasoning_gym_tasks(family, options, size=config.size, seed=config.seed)
        ]
        return interleave_by_source(tasks)
    if config.source == SEEDS:
        seeds = random.Random(f"seeds/{config.seed}").sample(range(1 << 31), config.size)
        rows: Rows = ((f"seed {k}", {"seed": seed}) for k, seed in enumerate(seeds))
    else:
        rows = rows_from(config.source, base, split=config.split)
    tasks = _tasks_of_rows(rows, config, check)
    if not tasks:
        raise ConfigError(f"data source {config.source!r} is empty; give one with at least one row")
    return tasks


def reasoning_gym() -> ModuleType:
    """Import the package. Defer its import of cellpylib, which loads matplotlib for two of its families."""
    install_lazy_import("cellpylib")
    import reasoning_gym

    module: ModuleType = reasoning_gym
    return module


def reasoning_gym_tasks(family: str, options: Mapping[str, Any], *, size: int, seed: int) -> list[Task]:
    """Return `size` distinct tasks of one family. The option `exclude_answers` drops tasks with those
    answers.

    reasoning-gym seeds item i with seed + i, so adjacent seeds share items and two families draw the same
    numbers: each (family, seed) gets its own distant seed.
    """
    options = dict(options)
    excluded = {str(answer) for answer in options.pop("exclude_answers", ())}
    draws = _DRAWS_PER_TASK * size + 100
    digest = hashlib.sha256(f"{seed}/{family}".encode()).digest()
    family_seed = int.from_bytes(digest[:4], "big") & 0x3FFFFFFF
    dataset = _create_dataset(family, options, size=draws, seed=family_seed)
    tasks: dict[str, Task] = {}
    for index in range(draws):
        entry = dataset[index]
        answer = "" if entry["answer"] is None else str(entry["answer"])
        if answer in excluded:
            continue
        question = str(entry["question"]).strip()
        task_id = content_id(family, question, answer)
        meta = {"family": family, "entry": entry}
        tasks.setdefault(task_id, Task(id=task_id, source=family, question=question, answer=answer, meta=meta))
        if len(tasks) == size:
            return list(tasks.values())
    raise ConfigError(
        f"task family {family!r} gave only {len(tasks)} distinct tasks in {draws} draws, fewer than "
        f"size = {size}; widen its number ranges or lower size"
    )


def _create_dataset(family: str, options: Mapping[str, Any], *, size: int, seed: int) -> Any:
    families = reasoning_gym().factory.DATASETS
    if family not in families:
        raise ConfigError(f"unknown task family {family!r}; {suggest(family, sorted(families))}")
    known = families[family][1].__dataclass_fields__
    for option in options:
        if option not in known or option in ("size", "seed"):
            others = [*(k for k in known if k not in ("size", "seed")), "exclude_answers"]
            raise ConfigError(f"task family {family!r} has no option {option!r}; {suggest(option, others)}")
    try:
        return reasoning_gym().create_dataset(family, size=size, seed=seed, **options)
    except (AssertionError, TypeError, ValueError) as error:
        given = ", ".join(f"{key} = {value!r}" for key, value in options.items()) or "its defaults"
        raise ConfigError(
            f"task family {family!r} refuses {given}: {error}; correct its options in families.{family}"
        ) from None


def _tasks_of_rows(rows: Rows, config: DataConfig, check: Callable[[Task], None]) -> list[Task]:
    tasks: list[Task] = []
    seen: Counter[str] = Counter()
    is_mixed = False
    for where, row in rows:
        task = (_task_of_environment if config.environment else _task_of_row)(row, config, where)
        try:
            check(task)
        except ChatError as error:
            raise ConfigError(f"{where}: {error}") from None
        is_mixed = is_mixed or task.source != (config.environment or name_of(config))
        seen[task.id] += 1
        if seen[task.id] > 1:
            task = replace(task, id=f"{task.id}-{seen[task.id]}")
        tasks.append(task)
        # Of a single source, the first `limit` rows are used.
        if len(tasks) == config.size or (len(tasks) == config.limit and not is_mixed):
            break
    return tasks


def _task_of_environment(row: Any, config: DataConfig, where: str) -> Task:
    """Return the task of a row that an environment gets; it may lack question and answer."""
    _check_row(row, where)
    question, context = "", tuple[dict[str, Any], ...]()
    if config.question in row:
        question, context = question_of(row[config.question], config.question, where)
    answer = answer_text(row[config.answer], config.answer, where) if config.answer in row else ""
    meta = {"environment": config.environment, "row": meta_of(row, without=frozenset(), where=where)}
    task_id = content_id(json.dumps(meta, sort_keys=True), question, answer)
    return Task(id=task_id, source=config.environment, question=question, answer=answer, meta=meta, context=context)


def _check_row(row: Any, where: str) -> None:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where} is {short_repr(row)}, not an object; each row must map field names to values")


def _task_of_row(row: Any, config: DataConfig, where: str) -> Task:
    _check_row(row, where)
    question, context = question_of(field_of(row, config.question, where), config.question, where)
    answer = answer_text(field_of(row, config.answer, where), config.answer, where)
    source, used = name_of(config), {config.question, config.answer}
    if isinstance(row.get(_SOURCE_COLUMN), str):
        source = row[_SOURCE_COLUMN]
        used.add(_SOURCE_COLUMN)
    return Task(
        id=id_of_task(question, answer, context),
        source=source,
        question=question,
        answer=answer,
        meta=meta_of(row, without=frozenset(used), where=where),
        context=context,
    )


def field_of(row: Mapping[str, Any], name: str, where: str) -> Any:
    """Return the value of field `name`; dots step into objects, numbers into lists. ConfigError if absent."""
    if name in row:
        return row[name]
    node: Any = row
    for part in name.split("."):
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            hint = suggest(name, _field_names(row)) if row else "it is empty"
            raise ConfigError(f"{where} has no field {name!r}; {hint} (fields of data: question, answer)")
    return node


def _field_names(row: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in row.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _field_names(value, f"{prefix}{key}.")


def question_of(value: Any, name: str, where: str) -> tuple[str, tuple[dict[str, Any], ...]]:
    """Return the question and the messages before it, () for a text. ConfigError if there is no question.

    A text is stripped; the content of messages stays unchanged, for the chat template to show.
    """
    if isinstance(value, str):
        if value.strip():
            return value.strip(), ()
    elif isinstance(value, list):
        where = f"{where}: field {name!r}"
        *context, last = read_messages(value, where)
        if last["role"] != "user":
            raise ConfigError(
                f"{where}: the last message is of role {last['role']!r}; it must be the user's, which the "
                "policy answers"
            )
        if last["content"].strip():
            return last["content"], tuple(context)
    raise ConfigError(
        f"{where}: field {name!r} holds no question ({short_repr(value)}); "
        "it must be text, or a chat list that ends with a user message"
    )


def answer_text(value: Any, name: str, where: str) -> str:
    """Return text, a finite number in plain notation, or the one of a list; of a GSM8K solution the part
    after ####."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, float | Decimal) and math.isfinite(value):
        # str() may write an exponent: 1e-05.
        value = f"{Decimal(str(value)):f}" if value else "0"
        value = value.rstrip("0").rstrip(".") if "." in value else value
    elif isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        _, marker, tail = value.rpartition("####")
        text = tail.strip().replace(",", "") if marker else value.strip()
        if text:
            return text
    raise ConfigError(
        f"{where}: field {name!r} holds no answer ({short_repr(value)}); it must be text or a finite number"
    )


def content_id(kind: str, question: str, answer: str) -> str:
    """Return 16 hexadecimal digits of a hash over a task: a family or the context, question, answer."""
    text = "\0".join((kind, question, answer))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def id_of_task(question: str, answer: str, context: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the id of a row's task."""
    return content_id(json.dumps(context, sort_keys=True) if context else "", question, answer)


def interleave_by_source(tasks: Sequence[Task]) -> list[Task]:
    """Spread every source evenly over the list and keep the order inside it: with sources of one size this
    is round robin, otherwise every stretch has about the mix of the whole.
    """
    by_source: defaultdict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        by_source[task.source].append(task)
    placed = [
        ((position + 0.5) / len(members), rank, task)
        for rank, members in enumerate(by_source.values())
        for position, task in enumerate(members)
    ]
    placed.sort(key=lambda item: item[:2])
    return [task for _, _, task in placed]


def mixed_by_weight(parts: Sequence[tuple[Sequence[Task], float]]) -> list[Task]:
    """Return the tasks of all parts, repeated so that the number of each is in proportion to its weight. A repeated
    task has another id. ConfigError for weights that repeat tasks too often."""
    scale = max(len(tasks) / weight for tasks, weight in parts)
    counts = [round(scale * weight) for _, weight in parts]
    if sum(counts) > MAX_MIXED:
        raise ConfigError(
            f"environments: their weights make {sum(counts):,} tasks of {sum(len(tasks) for tasks, _ in parts):,}, "
            f"more than {MAX_MIXED:,}; choose weights that are closer to the numbers of tasks"
        )
    mixed = []
    for (tasks, _), count in zip(parts, counts, strict=True):
        for k in range(count):
            round_, task = k // len(tasks), tasks[k % len(tasks)]
            mixed.append(replace(task, id=f"{task.id}-r{round_}") if round_ else task)
    return mixed
