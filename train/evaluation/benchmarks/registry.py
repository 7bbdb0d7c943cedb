"""The built-in evaluation sets by name. The module of a set is imported on first use.

name ──find──> Benchmark ──copy_of──> a local file ──load──> tasks, as many as published, with their digest
"""

import csv
import dataclasses
import hashlib
import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

from rocstar.engine.types import HIDDEN, Attempt, Outcome, Scored, Task
from rocstar.sandbox.command_line import suggest
from rocstar.train.evaluation.benchmarks import benchmark
from rocstar.train.evaluation.benchmarks.benchmark import SETS, Benchmark
from rocstar.train.recipe.config import EvalConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.paths import missing_path_hint
from rocstar.train.tasks.data import content_id
from rocstar.train.tasks.rows import DATA_DIR_VARIABLE, rows_from
from rocstar.train.tasks.verify import extract_answer

LETTERS = "ABCD"
_CANARY = "Canary String"
_ORDERS = tuple(permutations(range(len(LETTERS))))
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit)\{([^{}]*)\}")
_LETTER = re.compile(r"(?:(?:option|choice)\s+)?[(\[]?([A-D])[)\].:]*", re.IGNORECASE)
_LETTER_AND_TEXT = re.compile(r"[(\[]?([A-D])(?:[)\].:]+\s*|\s+)(\S.*)", re.IGNORECASE)


def plain_set(name: str) -> benchmark.Benchmark:
    """Build the set of a row."""
    has_choices = benchmark.SETS[name]["judge"] == "choices"
    return benchmark.benchmark_of(
        name,
        load=partial(read_choices if has_choices else read_problems, name=name),
        judge=ChoiceJudge if has_choices else None,
        near_miss=wrong_letter if has_choices else benchmark.next_number,
    )


def parse_integer(text: str) -> str:
    """Return a whole number without leading zeros, ".0" or a degree sign. ValueError for any other text."""
    plain = text.removesuffix("^\\circ").removesuffix("^{\\circ}").strip("$ ")
    plain = plain.removesuffix(".0")
    if not plain.removeprefix("-").isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return str(int(plain))


def parse_contest_integer(text: str) -> str:
    """Return an answer of the AIME, 0 to 999. ValueError for any other text."""
    value = parse_integer(text)
    if not 0 <= int(value) <= 999:
        raise ValueError(f"{text!r} is not a whole number from 0 to 999")
    return value


ANSWER_FORMATS: Mapping[str, Callable[[str], str]] = {
    "text": str.strip,
    "integer": parse_integer,
    "contest_integer": parse_contest_integer,
    # The whole number after the last ####, without thousands separators.
    "after_marks": lambda text: parse_integer(text.rpartition("####")[2].strip().replace(",", "")),
}


def read_problems(path: Path, *, name: str) -> list[Task]:
    """Return the tasks of a copy, in its order.

    Raises:
        ConfigError: a row has another form, or the answers are not the published ones.
    """
    row, tasks = benchmark.SETS[name], []
    parse = ANSWER_FORMATS[row["answer_format"]]
    for where, problem in rows_from(str(path), Path(), split="test"):
        if not isinstance(problem, Mapping):
            raise ConfigError(f"{where} is not an object. Pass a copy of {name}.")
        question = _column(problem, row["question"], where)
        try:
            answer = parse(_column(problem, row["answer"], where))
        except ValueError as error:
            raise ConfigError(f"{where}: the answer {error}. Pass a copy of {name}.") from None
        tasks.append(Task(id=content_id(name, question, answer), source=name, question=question, answer=answer))
    digest = benchmark.json_digest(sorted(task.answer for task in tasks))  # copies differ in order and wording
    if row["answers"] and digest != row["answers"]:
        raise ConfigError(
            f"{str(path)!r}: its answers are not the published ones of {name} (digest {digest[:16]}, not "
            f"{row['answers'][:16]}). It is another set or has a wrong answer; use the copy of the hub."
        )
    return tasks


def _column(row: Mapping[str, Any], names: Sequence[str], where: str) -> str:
    for name in names:
        if name in row and row[name] is not None and str(row[name]).strip():
            return str(row[name]).strip()
    raise ConfigError(f"{where} has none of the columns {', '.join(names)}. Pass a copy of the set.")


def read_choices(path: Path, *, name: str) -> list[Task]:
    """Return the tasks of a CSV, in its order. ConfigError for a file of another form."""
    path = path / f"{name}.csv" if path.is_dir() else path
    needed, tasks = [*benchmark.SETS[name]["question"], *benchmark.SETS[name]["answer"]], []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for number, row in enumerate(csv.DictReader(file, strict=True), start=1):
                missing = [column for column in needed if not (row.get(column) or "").strip()]
                if missing:
                    raise ConfigError(f"{path}, row {number} has no {missing[0]!r}. Pass the CSV file of {name}.")
                tasks.append(_choice_task(row, name))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"cannot read {str(path)!r} as CSV in UTF-8: {error}. Pass the CSV file of {name}."
        ) from None
    return tasks


def _choice_task(row: Mapping[str, str], name: str) -> Task:
    columns = benchmark.SETS[name]
    question = row[columns["question"][0]].strip()
    answers = [row[column].strip() for column in columns["answer"]]
    order = order_of(question)
    options = [answers[index] for index in order]
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=True))
    identity = row.get("Record ID") or hashlib.sha256(question.encode()).hexdigest()[:16]
    meta = {"options": options, "canary": row.get(_CANARY) or ""}
    if domain := row.get("High-level domain"):
        meta["category"] = domain.strip()
    return Task(
        id=f"{name}-{identity.strip()}",
        source=name,
        question=f"{question}\n\n{listed}\n\nWhich option is correct? Answer with its letter alone.",
        answer=LETTERS[order.index(0)],
        meta=meta,
    )


def order_of(question: str) -> tuple[int, ...]:
    """Return the column of options A, B, C and D: one of 24 orders, by the hash of the question alone."""
    number = int.from_bytes(hashlib.sha256(question.strip().encode()).digest(), "big")
    return _ORDERS[number % len(_ORDERS)]


def parse_letter(answer: str, options: Sequence[str]) -> str | None:
    """Return the letter that an answer names, or None.

    An answer is a letter, a letter with its option, or an option. A letter with another option names none.
    """
    plain = _unwrap(answer)
    if alone := _LETTER.fullmatch(plain):
        return alone[1].upper()
    texts = [_unwrap(option) for option in options]
    if texts.count(plain) == 1:
        return LETTERS[texts.index(plain)]
    both = _LETTER_AND_TEXT.fullmatch(plain)
    if both and texts[LETTERS.index(both[1].upper())] == both[2].strip():
        return both[1].upper()
    return None


def _unwrap(text: str) -> str:
    text = _WRAPPED.sub(r"\1", text.replace("$", ""))
    return " ".join(text.split()).removesuffix(".")


class ChoiceJudge:
    """Scores the letter in the box of the answer block.

    Invariant: the reward is 1 if the box names the letter of the correct option and no other, else 0.
    """

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        if attempt.is_truncated:
            return Scored(reward=0.0, method="truncated")
        extraction = extract_answer(attempt)
        if extraction.answer is None:
            return Scored(reward=0.0, method=str(extraction.failure))
        letter = parse_letter(extraction.answer, attempt.task.meta["options"])
        if letter is None:
            return Scored(reward=0.0, method="no_letter")
        return Scored(reward=float(letter == attempt.task.answer), method="letter")


def wrong_letter(task: Task) -> str:
    """Return an answer block with the letter after the correct one."""
    other = LETTERS[(LETTERS.index(task.answer) + 1) % len(LETTERS)]
    return benchmark.answer_block(other)


_HERE = "rocstar.train.evaluation.benchmarks"
MODULES: Mapping[str, str] = {
    "ifeval": f"{_HERE}.ifeval.ifeval:IFEVAL",
    "bfcl_v3": f"{_HERE}.bfcl.bfcl:BFCL_V3",
    "arena_hard": f"{_HERE}.arena_hard:ARENA_HARD",
}
"""module:NAME of each set that is more than a row of `sets.toml`."""
NAMES = tuple(SETS)
"""The names of all sets, as in train/recipe/config.py."""


def find(name: str) -> Benchmark:
    """Return the set with that name. ConfigError if there is none, or this installation lacks its package."""
    if name not in SETS:
        raise ConfigError(f"{name!r} is not a built-in set; {suggest(name, NAMES)}")
    if name not in MODULES:
        return plain_set(name)
    module, _, attribute = MODULES[name].partition(":")
    try:
        found: Benchmark = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the set {name!r} needs the package {error.name}, which is missing") from None
    return found


def load_tasks_of(config: EvalConfig) -> list[Task]:
    """Load the tasks of a built-in set, from its local copy or from the hub; those of a hidden one are
    marked.

    Raises:
        ConfigError: no copy is available, or it is another set.
    """
    benchmark = find(config.set)
    path = Path(config.path) if config.path else copy_of(benchmark)
    if not path.exists():
        raise ConfigError(
            f"set {config.set!r}: {str(path)!r} does not exist{missing_path_hint(path)}; pass a copy of "
            f"{benchmark.source.repository or benchmark.source.file}"
        )
    tasks = list(benchmark.load(path))
    if len(tasks) != benchmark.num_questions:
        raise ConfigError(
            f"set {config.set!r}: {str(path)!r} has {len(tasks)} questions, and the set has "
            f"{benchmark.num_questions}; pass a complete copy (eval.limit = N uses its first N)"
        )
    if benchmark.hidden:
        tasks = [dataclasses.replace(task, meta={**task.meta, HIDDEN: True}) for task in tasks]
    return tasks


def copy_of(benchmark: Benchmark) -> Path:
    """Return the set's file at its pinned revision: below $ROCSTAR_DATA_DIR, in the hub's cache, or
    downloaded.

    Raises:
        ConfigError: it is not available.
    """
    source = benchmark.source
    fix = f"pass a local copy: [[eval]] set = {benchmark.name!r}, path = 'FILE', or --path FILE"
    if not source.repository:
        raise ConfigError(f"set {benchmark.name!r} is never downloaded ({source.file}); {fix}")
    override = os.environ.get(DATA_DIR_VARIABLE)
    if override and (local := Path(override) / source.repository / source.file).exists():
        return local
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(
            huggingface_hub.hf_hub_download(
                source.repository, source.file, repo_type="dataset", revision=source.revision
            )
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"set {benchmark.name!r}: {source.repository} at {source.revision or 'its newest revision'} "
            f"cannot be downloaded ({first}); {fix}, or put the file into "
            f"${DATA_DIR_VARIABLE}/{source.repository}/{source.file}"
        ) from None
