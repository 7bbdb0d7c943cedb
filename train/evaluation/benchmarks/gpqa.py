"""GPQA-Diamond (arXiv 2311.12022): 198 questions of graduate science with four options.

    row of the user's CSV ──order by sha256 of the question──> options A to D ──(agent)──> \\boxed{letter}

The set is given out against the promise not to show its questions online: it is never fetched, nothing of it
is part of this package, its canary stays in each task's `meta`, and reports hide what is asked (`hidden`).
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path

from rocstar.engine.types import Attempt, Outcome, Scored, Task
from rocstar.train.evaluation.benchmarks.benchmark import Asking, Benchmark, Published
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.verify import extract_answer

NAME = "gpqa_diamond"
LETTERS = "ABCD"
_QUESTION, _CORRECT, _CANARY = "Question", "Correct Answer", "Canary String"
_COLUMNS = (_CORRECT, "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
"""The options in the order of the file."""
_ORDERS = tuple(permutations(range(len(LETTERS))))

_WRAPPED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit)\{([^{}]*)\}")
_LETTER = re.compile(r"(?:(?:option|choice)\s+)?[(\[]?([A-D])[)\].:]*", re.IGNORECASE)
_LETTER_AND_TEXT = re.compile(r"[(\[]?([A-D])(?:[)\].:]+\s*|\s+)(\S.*)", re.IGNORECASE)


def order_of(question: str) -> tuple[int, int, int, int]:
    """Return which option stands at A, B, C and D: one of 24 orders, by the hash of the question alone."""
    number = int.from_bytes(hashlib.sha256(question.strip().encode()).digest(), "big")
    a, b, c, d = _ORDERS[number % len(_ORDERS)]
    return a, b, c, d


def load(path: Path) -> list[Task]:
    """Return the tasks of the CSV in its order; ConfigError for one of another form."""
    folder = path / "gpqa_diamond.csv"
    return [_task(row) for row in _rows(folder if path.is_dir() else path)]


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    needed = (_QUESTION, *_COLUMNS)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for number, row in enumerate(csv.DictReader(file, strict=True), start=1):
                where = f"{path}, row {number}"
                missing = [name for name in needed if not (row.get(name) or "").strip()]
                if missing:
                    raise ConfigError(f"{where} has no {missing[0]!r}; give the CSV of GPQA-Diamond")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{str(path)!r} is no CSV in UTF-8: {error}; give that of GPQA-Diamond") from None


def _task(row: Mapping[str, str]) -> Task:
    question = row[_QUESTION].strip()
    given = [row[name].strip() for name in _COLUMNS]
    order = order_of(question)
    options = [given[index] for index in order]
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=True))
    identity = row.get("Record ID") or hashlib.sha256(question.encode()).hexdigest()[:16]
    meta = {"options": options, "canary": row.get(_CANARY) or ""}
    if domain := row.get("High-level domain"):
        meta["category"] = domain.strip()
    return Task(
        id=f"{NAME}-{identity.strip()}",
        source=NAME,
        question=f"{question}\n\n{listed}\n\nWhich option is correct? Answer with its letter alone.",
        answer=LETTERS[order.index(0)],
        meta=meta,
    )


def chosen_letter(answer: str, options: Sequence[str]) -> str | None:
    """Return the letter that an answer names: alone, with its option, or by the option alone; else None.

    A letter beside the text of another option names none.
    """
    plain = _unwrapped(answer)
    if alone := _LETTER.fullmatch(plain):
        return alone[1].upper()
    texts = [_unwrapped(option) for option in options]
    if texts.count(plain) == 1:
        return LETTERS[texts.index(plain)]
    both = _LETTER_AND_TEXT.fullmatch(plain)
    if both and texts[LETTERS.index(both[1].upper())] == both[2].strip():
        return both[1].upper()
    return None


def _unwrapped(text: str) -> str:
    text = _WRAPPED.sub(r"\1", text.replace("$", ""))
    return " ".join(text.split()).removesuffix(".")


class ChoiceJudge:
    """Scores the letter in the box of the answer block.

    Invariant: the reward is 1 exactly where the box names the letter of the correct option, and no other.
    """

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        """Compare letters; `deadline` is not needed."""
        if attempt.is_truncated:
            return Scored(reward=0.0, method="truncated")
        extraction = extract_answer(attempt.turns)
        if extraction.answer is None:
            return Scored(reward=0.0, method=str(extraction.failure))
        letter = chosen_letter(extraction.answer, attempt.task.meta["options"])
        if letter is None:
            return Scored(reward=0.0, method="no_letter")
        return Scored(reward=float(letter == attempt.task.answer), method="letter")


def near_miss(task: Task) -> str:
    """The next letter, boxed."""
    other = LETTERS[(LETTERS.index(task.answer) + 1) % len(LETTERS)]
    return f"<answer>\\boxed{{{other}}}</answer>"


GPQA_DIAMOND = Benchmark(
    name=NAME,
    title="GPQA-Diamond",
    num_questions=198,
    licence="CC BY 4.0, gated: its questions are not to be shown online",
    source=Published(
        repository="",
        revision="",
        file="gpqa_diamond.csv, which the hub's Idavidrein/gpqa gives to who agrees to its terms",
        digest="",
    ),
    asking=Asking.agent,
    load=load,
    judge=ChoiceJudge,
    near_miss=near_miss,
    hidden=True,
)
