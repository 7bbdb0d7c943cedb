"""Sets of mathematical problems with a short answer: asked by the recipe's template, scored by its reward.

A set is a row of data. Each is read in the form of its hub repository and in that of a plain JSON Lines file
with `problem` and `answer`. Copies word problems differently and order them differently, but the answers are
the published ones or the copy is wrong: one that circulates has 480 where AIME 2024 I, problem 8 has 197.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rocstar.engine.types import Task
from rocstar.train.evaluation.benchmarks.benchmark import Asking, Benchmark, Published
from rocstar.train.evaluation.benchmarks.digest import answers_digest
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.data import content_id
from rocstar.train.tasks.rows import rows_of

QUESTION, ANSWER = ("problem", "question"), ("answer", "solution")
"""What the columns are called, the first that there is."""


def integer(text: str) -> str:
    """A whole number without leading zeros, decimals that are none, or a sign of degrees."""
    plain = text.removesuffix("^\\circ").removesuffix("^{\\circ}").strip("$ ")
    plain = plain.removesuffix(".0")
    if not plain.removeprefix("-").isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return str(int(plain))


def contest_integer(text: str) -> str:
    """An answer of the AIME: 0 to 999."""
    value = integer(text)
    if not 0 <= int(value) <= 999:
        raise ValueError(f"{text!r} is not a whole number from 0 to 999")
    return value


def after_marks(text: str) -> str:
    """What stands behind the last ####, without thousands separators; else the whole."""
    return integer(text.rpartition("####")[2].strip().replace(",", ""))


def _column(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> str:
    for name in names:
        if name in row and row[name] is not None and str(row[name]).strip():
            return str(row[name]).strip()
    raise ConfigError(f"{where} has none of the columns {', '.join(names)}; give a copy of the set")


def load(path: Path, *, name: str, read: Callable[[str], str], answers: str) -> list[Task]:
    """The tasks of a copy, in its order. answers: the digest of the published ones, '' if it is not known."""
    tasks = []
    config = DataConfig(source=str(path), split="test")
    for where, row in rows_of(config, Path()):
        if not isinstance(row, Mapping):
            raise ConfigError(f"{where} is not an object; give a copy of {name}")
        question = _column(row, QUESTION, where)
        try:
            answer = read(_column(row, ANSWER, where))
        except ValueError as error:
            raise ConfigError(f"{where}: the answer {error}; give a copy of {name}") from None
        identity = content_id(name, question, answer)
        tasks.append(Task(id=identity, source=name, question=question, answer=answer))
    found = answers_digest(task.answer for task in tasks)
    if answers and found != answers:
        raise ConfigError(
            f"{str(path)!r}: its answers are not the published ones of {name} (digest {found[:16]}, not "
            f"{answers[:16]}); a copy with a wrong answer, or of another set: take that of the hub"
        )
    return tasks


def math_set(
    *,
    name: str,
    title: str,
    num_questions: int,
    licence: str,
    source: Published,
    answers: str,
    read: Callable[[str], str] = str.strip,
) -> Benchmark:
    """A set of this kind. `read` makes an answer of a copy the canonical one."""
    return Benchmark(
        name=name,
        title=title,
        num_questions=num_questions,
        licence=licence,
        source=source,
        asking=Asking.agent,
        load=partial(load, name=name, read=read, answers=answers),
    )


_MAA = "problems: MAA; "

AIME24 = math_set(
    name="aime24",
    title="AIME 2024, I and II",
    num_questions=30,
    licence=_MAA + "repository: Apache-2.0",
    source=Published(
        repository="HuggingFaceH4/aime_2024",
        revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        file="data/train-00000-of-00001.parquet",
        digest="39612991dc122fbd3af5e07808bef527ee463e3ade88526765a1592eef8551c7",
    ),
    answers="b1f0c9e511c1715c0941b0c90aa91d990b830bfaf411a3a41b3f339e5c2f6251",
    read=contest_integer,
)
AIME25 = math_set(
    name="aime25",
    title="AIME 2025, I and II",
    num_questions=30,
    licence=_MAA + "repository: Apache-2.0",
    source=Published(
        repository="math-ai/aime25",
        revision="563bb8404243c5f09de6ec262f2db674fe5bce9b",
        file="test.jsonl",
        digest="7284f826da83efa0032c7a85ba2c8d80b2780a4809f4b09637fdddf442787a0b",
    ),
    answers="864d704745e4ec6b9e6d4b07a89220db73a5a43fbc036a714a00b597a8a622b2",
    read=contest_integer,
)
HMMT_FEB_2025 = math_set(
    name="hmmt_feb_2025",
    title="HMMT, February 2025",
    num_questions=30,
    licence="problems: HMMT; repository: CC BY-NC-SA 4.0",
    source=Published(
        repository="MathArena/hmmt_feb_2025",
        revision="6fdc4277120810ff75aa22d2d5489b91f7a262a1",
        file="data/train-00000-of-00001.parquet",
        digest="",
    ),
    answers="",
)
MATH500 = math_set(
    name="math500",
    title="MATH-500",
    num_questions=500,
    licence="MIT",
    source=Published(
        repository="HuggingFaceH4/MATH-500",
        revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        file="test.jsonl",
        digest="e3c9d68daf11f09d8e2e2fde7bc0a1292b58e4fecf92089f6aa4aa4792b5bd66",
    ),
    answers="ddc0ae19c33f2969e41a86c4c012fc5bd48f35b567d714e8032aff25353b3cf6",
)
AMC23 = math_set(
    name="amc23",
    title="AMC 12, 2023, A and B",
    num_questions=40,
    licence=_MAA + "repository: Apache-2.0",
    source=Published(
        repository="math-ai/amc23",
        revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
        file="test-00000-of-00001.parquet",
        digest="9613702c32651a5baa12646f6ac48c1e77e9ecde9148e5a716325a2adc86effe",
    ),
    answers="dc370b5df0ddacdfbb30cf90c8f9f4f7d55fe5f34f2c5cf9b3c32381bb5db848",
    read=integer,
)
GSM8K = math_set(
    name="gsm8k",
    title="GSM8K, test",
    num_questions=1319,
    licence="MIT",
    source=Published(
        repository="openai/gsm8k",
        revision="740312add88f781978c0658806c59bc2815b9866",
        file="main/test-00000-of-00001.parquet",
        digest="b11bbfadb12332c5ad5393b5367f3f367c7e4a751daf03cc1802e8273062e8f2",
    ),
    answers="1fd593fe2a621b080adabae98e31315046372f9a8fcba7d0a8f90f9a95f8da48",
    read=after_marks,
)
