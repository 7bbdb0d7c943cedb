"""Where tasks come from: reasoning-gym families, JSONL and Parquet files, hub data sets. Imports no torch.

A task's id is a hash of its content, so it survives reshuffling; equal rows get a running suffix, and
nothing is dropped silently. Bad input raises ConfigError with the value, the reason and the fix.
"""

from __future__ import annotations

import difflib
import gzip
import hashlib
import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.engine.types import Task
from rocstar.train.config import ConfigError, DataConfig

DATA_DIR_VARIABLE = "ROCSTAR_DATA_DIR"
"""Names a directory in which `hub:OWNER/NAME` is looked for as OWNER/NAME before the hub is asked."""

REASONING_GYM = "reasoning_gym"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
_DRAWS_PER_TASK = 20


def load_tasks(config: DataConfig, *, base: Path) -> list[Task]:
    """All tasks of a source, in its order. Relative paths start at `base`. Raises ConfigError."""
    if config.source == REASONING_GYM:
        tasks = [
            task
            for family, options in config.families.items()
            for task in reasoning_gym_tasks(family, options, size=config.size, seed=config.seed)
        ]
        return interleave_by_source(tasks)
    rows = _hub_rows(config) if config.source.startswith("hub:") else _path_rows(config, base)
    tasks = _tasks_of_rows(rows, config)
    if not tasks:
        raise ConfigError(f"data source {config.source!r} is empty; give one with at least one row")
    return tasks


# ---------------------------------------------------------------- reasoning-gym


def reasoning_gym_tasks(family: str, options: Mapping[str, Any], *, size: int, seed: int) -> list[Task]:
    """`size` distinct tasks of one family. The option `exclude_answers` drops tasks with those answers.

    reasoning-gym seeds item i with seed + i, so neighbouring seeds share items and two families draw the
    same numbers: each (family, seed) gets a far-apart seed of its own.
    """
    options = dict(options)
    excluded = {str(answer) for answer in options.pop("exclude_answers", ())}
    draws = _DRAWS_PER_TASK * size + 100
    dataset = _create_dataset(family, options, size=draws, seed=_family_seed(family, seed))
    tasks: dict[str, Task] = {}
    for index in range(draws):
        entry = dataset[index]
        answer = "" if entry["answer"] is None else str(entry["answer"])
        if answer in excluded:
            continue
        question = str(entry["question"]).strip()
        task_id = content_id(family, question, answer)
        meta = {"family": family, "entry": entry}
        tasks.setdefault(
            task_id, Task(id=task_id, source=family, question=question, answer=answer, meta=meta)
        )
        if len(tasks) == size:
            return list(tasks.values())
    raise ConfigError(
        f"task family {family!r} gave only {len(tasks)} distinct tasks in {draws} draws, fewer than "
        f"size = {size}; widen its number ranges or lower size"
    )


def _family_seed(family: str, seed: int) -> int:
    digest = hashlib.sha256(f"{seed}/{family}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x3FFFFFFF


def _create_dataset(family: str, options: Mapping[str, Any], *, size: int, seed: int) -> Any:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if family not in DATASETS:
        raise ConfigError(f"unknown task family {family!r}; did you mean {_nearest(family, DATASETS)!r}?")
    known = DATASETS[family][1].__dataclass_fields__
    for option in options:
        if option not in known or option in ("size", "seed"):
            near = _nearest(option, [*(k for k in known if k not in ("size", "seed")), "exclude_answers"])
            raise ConfigError(f"task family {family!r} has no option {option!r}; did you mean {near!r}?")
    try:
        return reasoning_gym.create_dataset(family, size=size, seed=seed, **options)
    except (AssertionError, TypeError, ValueError) as error:
        shown = ", ".join(f"{key} = {value!r}" for key, value in options.items()) or "its defaults"
        raise ConfigError(
            f"task family {family!r} refuses {shown}: {error}; correct its options in families.{family}"
        ) from None


# ---------------------------------------------------------------- rows of files and hub data sets


def _path_rows(config: DataConfig, base: Path) -> Iterator[tuple[str, Any]]:
    path = base / config.source
    if path.is_dir():
        return _directory_rows(path, config.split)
    if not path.exists():
        raise ConfigError(
            f"data source {config.source!r}: {str(path)!r} does not exist; give a path to a "
            f"{', '.join(_SUFFIXES)} file or a directory of them, 'hub:NAME', or {REASONING_GYM!r}"
        )
    return _file_rows(path)


def _directory_rows(directory: Path, split: str) -> Iterator[tuple[str, Any]]:
    """Rows of the split's files, named SPLIT.jsonl or SPLIT-00000-of-00001.parquet, here or in data/."""
    for folder in (directory, directory / "data"):
        files = [
            path
            for suffix in _SUFFIXES
            for pattern in (f"{split}{suffix}", f"{split}-*{suffix}")
            for path in sorted(folder.glob(pattern))
        ]
        if files:
            return (row for path in files for row in _file_rows(path))
    raise ConfigError(
        f"data directory {str(directory)!r} holds no {split!r} split; put {split}.jsonl, {split}.jsonl.gz or "
        f"{split}-*.parquet into it, or set split to one that is there"
    )


def _file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, row) pairs; `where` names the row in an error message."""
    if path.name.endswith(".parquet"):
        return _parquet_rows(path)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return _jsonl_rows(path)
    raise ConfigError(f"data file {str(path)!r} has an unknown ending; give {', '.join(_SUFFIXES)}")


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    opener = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}, line {number}", _parse_line(line, f"{path}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"data file {str(path)!r} cannot be read: {error}; give a UTF-8 JSONL file"
        ) from None


def _parse_line(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON: {error}; write one JSON object per line") from None


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"data file {str(path)!r} needs pyarrow, which is missing; run: pip install 'rocstar[data]'"
        ) from None
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"data file {str(path)!r} is not a Parquet file: {error}") from None
    return ((f"{path}, row {number}", row) for number, row in enumerate(rows))


def _hub_rows(config: DataConfig) -> Iterator[tuple[str, Any]]:
    """`hub:OWNER/NAME` or `hub:OWNER/NAME:CONFIGURATION`, from the local override or through `datasets`."""
    name, _, configuration = config.source.removeprefix("hub:").partition(":")
    override = os.environ.get(DATA_DIR_VARIABLE)
    if override and (Path(override) / name).is_dir():
        directory = Path(override) / name
        inner = directory / configuration
        return _directory_rows(inner if inner.is_dir() else directory, config.split)
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            f"data source {config.source!r} needs the package datasets, which is missing; "
            f"run: pip install 'rocstar[data]', or put its files into ${DATA_DIR_VARIABLE}/{name}"
        ) from None
    try:
        dataset = datasets.load_dataset(name, configuration or None, split=config.split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise ConfigError(
            f"data source {config.source!r}, split {config.split!r}, cannot be loaded: {error}; check the "
            "name (hub:OWNER/NAME:CONFIGURATION) and the network, or put its files into "
            f"${DATA_DIR_VARIABLE}/{name}"
        ) from None
    return ((f"{name}, row {number}", row) for number, row in enumerate(dataset))


def _tasks_of_rows(rows: Iterator[tuple[str, Any]], config: DataConfig) -> list[Task]:
    name = config.source.removeprefix("hub:")
    tasks: list[Task] = []
    seen: Counter[str] = Counter()
    for where, row in rows:
        if config.size and len(tasks) == config.size:
            break
        if not isinstance(row, Mapping):
            raise ConfigError(
                f"{where} is {_shown(row)}, not an object; each row must map field names to values"
            )
        question = _question_text(_field(row, config.question, where), config.question, where)
        answer = _answer_text(_field(row, config.answer, where), config.answer, where)
        source = row.get("data_source", name)
        source = source if isinstance(source, str) else name
        task_id = content_id(source, question, answer)
        seen[task_id] += 1
        if seen[task_id] > 1:
            task_id = f"{task_id}-{seen[task_id]}"
        tasks.append(Task(id=task_id, source=source, question=question, answer=answer))
    return tasks


def _field(row: Mapping[str, Any], name: str, where: str) -> Any:
    """The value under `name`; dots step into nested objects, a number into a list."""
    if name in row:
        return row[name]
    node: Any = row
    for part in name.split("."):
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        else:
            known = list(_field_names(row))
            hint = (
                f"did you mean {_nearest(name, known)!r} of {', '.join(known)}?" if known else "it is empty."
            )
            raise ConfigError(
                f"{where} has no field {name!r}; {hint} Set question and answer in the recipe's data"
            )
    return node


def _field_names(row: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in row.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _field_names(value, f"{prefix}{key}.")


def _question_text(value: Any, name: str, where: str) -> str:
    """A string, or the last user message of a chat list."""
    if isinstance(value, list):
        users = [m for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        value = users[-1].get("content") if users else None
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise ConfigError(
        f"{where}: field {name!r} holds no question ({_shown(value)}); "
        "it must be text, or a chat list with a user message"
    )


def _answer_text(value: Any, name: str, where: str) -> str:
    """Text or a number, or a list of one of these; of a GSM8K solution the part after ####."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        _, marker, tail = value.rpartition("####")
        text = tail.strip().replace(",", "") if marker else value.strip()
        if text:
            return text
    raise ConfigError(
        f"{where}: field {name!r} holds no answer ({_shown(value)}); it must be text or a number"
    )


# ---------------------------------------------------------------- order, overlap


def content_id(source: str, question: str, answer: str) -> str:
    """16 hexadecimal digits of a hash over what a task is."""
    return hashlib.sha256("\0".join((source, question, answer)).encode()).hexdigest()[:16]


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


def overlap(tasks: Sequence[Task], against: Iterable[Task]) -> float:
    """Share of `tasks` whose question also occurs in `against`, whitespace and case aside; 0 for no tasks."""
    if not tasks:
        return 0.0
    return 1.0 - len(without_overlap(tasks, against)) / len(tasks)


def without_overlap(tasks: Iterable[Task], against: Iterable[Task]) -> list[Task]:
    """`tasks` less those whose question occurs in `against`."""
    taken = {_question_key(task) for task in against}
    return [task for task in tasks if _question_key(task) not in taken]


def _question_key(task: Task) -> str:
    return " ".join(task.question.casefold().split())


class TaskCursor:
    """An endless order over tasks that can be stopped and resumed.

    Invariants: every epoch shows each task once, in an order that depends on (seed, epoch) alone; a cursor
    restored from `state()` continues exactly where the other stood.
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        if not tasks:
            raise ConfigError(
                "there are no tasks to train on; the data source or the difficulty filter left none"
            )
        self._tasks = sorted(tasks, key=lambda task: task.id)
        self._seed = seed
        self._fingerprint = content_id("", "\0".join(task.id for task in self._tasks), str(seed))
        self._epoch, self._position = 0, 0
        self._order = self._shuffled()

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks; the epoch after this one begins where it ends."""
        taken: list[Task] = []
        while len(taken) < count:
            if self._position == len(self._order):
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._shuffled()
            chunk = self._order[self._position : self._position + count - len(taken)]
            self._position += len(chunk)
            taken += chunk
        return taken

    def state(self) -> dict[str, Any]:
        """Plain JSON values for `restore`."""
        return {"epoch": self._epoch, "position": self._position, "fingerprint": self._fingerprint}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Stand where `state` was taken. Raises ConfigError if it belongs to other tasks or another seed."""
        if state["fingerprint"] != self._fingerprint:
            raise ConfigError(
                f"the checkpoint's task cursor ({state['fingerprint']}) belongs to other tasks or another "
                f"seed than this recipe's ({self._fingerprint}); resume with the data and seed it began with"
            )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._order = self._shuffled()

    def _shuffled(self) -> list[Task]:
        order = list(self._tasks)
        random.Random(f"{self._seed}/{self._epoch}").shuffle(order)
        by_rank = sorted(order, key=lambda task: task.source)
        return interleave_by_source(by_rank)


def _nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
