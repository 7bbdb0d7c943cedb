"""`rocstar data check`: tasks against the questions of evaluation sets; a row per task, in their order.

    {"id": ..., "level": "twin", "score": 0.93, "rule": "coverage but for numbers",
     "against": {"file": "math500.jsonl", "id": ...}, "shared": "the words that they share"}

The same tasks and sets give the same bytes. The file appears whole or not at all.

    rows ──meet──> OUT.work, which a killed check leaves ──count──> OUT.partial ──> OUT

Matches of each row are in OUT.work until all are known, so memory depends only on the sets. The same command
resumes: a row is taken from it if its id and its text are unchanged.
"""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rocstar.engine.record.files import whole_file
from rocstar.train.data.build_config import EvalSet
from rocstar.train.data.overlap import LEVELS, Check, EvalQuestion, OverlapCheck, PaperCheck, TaskVerdict
from rocstar.train.data.work_file import discard_work, open_work
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import check_file
from rocstar.train.tasks.data import content_id
from rocstar.train.tasks.rows import rows_from

Mode = Literal["coverage", "paper"]
FIELDS: Final = ("question", "problem", "prompt", "messages", "input")
"""The fields of a row's problem, if no field is named."""
ANSWERS: Final = ("answer", "solution", "expected_answer", "ground_truth")
"""The fields of a row's answer."""
LONGEST_ANSWER: Final = 200
"""Characters; a longer text is a solution, and its answer is unknown."""
RULES: Final = 2
"""Version of the rule; half-done work of an older version is started again."""
COMMITTED_ROWS: Final = 10_000
"""A killed check loses no more."""
_SCHEMA = "CREATE TABLE met (number INTEGER PRIMARY KEY, digest BLOB, name TEXT, met BLOB);"
_Row = tuple[int, bytes, str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Counts by level and by set."""

    levels: Mapping[str, int]
    by_set: Mapping[str, Mapping[str, int]]
    """The number of tasks of each level except clean, by set."""
    questions: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        return {"levels": dict(self.levels), "sets": self.by_set, "questions": dict(self.questions)}

    def as_text(self) -> str:
        """Return a table."""
        total = sum(self.levels.values())
        lines = [f"{level:10} {self.levels[level]:8,} of {total:,}" for level in LEVELS]
        for name, count in self.questions.items():
            found = ", ".join(f"{n:,} {level}" for level, n in self.by_set.get(name, {}).items()) or "nothing"
            lines.append(f"against {name} ({count:,} questions): {found}")
        return "\n".join(lines)


def check_tasks(
    tasks: str, against: Sequence[str], out: Path, *, mode: Mode = "coverage", field: str | None = None, force: bool
) -> Checked:
    """Judge every task and write its level.

    Args:
        tasks: a JSONL or Parquet file, a folder of them, or a hub data set, as in a recipe.
        against: evaluation sets, in the same forms.
        out: the file to write; `force` replaces it.
        mode: paper: the plain rule of any 8 words.
        field: where a row's problem is; None: the first of FIELDS that the row has.

    Raises:
        ConfigError: a source or the target cannot be used; nothing is written.
    """
    check_file(out, force=force)
    questions = read_questions([EvalSet(source=source, question=field or "") for source in against])
    check = make_check(questions, mode)
    digest = hashlib.sha256()
    for one in questions:
        digest.update(json.dumps([one.file, one.id, one.text, one.answer]).encode())
    work, about = out.with_name(out.name + ".work"), [RULES, mode, field, digest.hexdigest()]
    try:
        with open_work(work, _SCHEMA, about) as database:
            if not _meet_all(database, check, tasks, field):
                raise ConfigError(f"{tasks!r} has no task; give a file with at least one")
            check.close()
            found = _write(database, check, questions, out)
    except ConfigError:  # a resumed check would raise it again
        discard_work(work)
        raise
    discard_work(work)
    return found


def read_questions(sets: Sequence[EvalSet]) -> list[EvalQuestion]:
    """Return the questions of evaluation sets. ConfigError if there is none, or a set cannot be used."""
    questions = [
        EvalQuestion(file=Path(one.source).name or one.source, id=str(name), text=text, answer=answer)
        for one in sets
        for name, text, answer in problems(one.source, one.question or None, split=one.split, revision=one.revision)
    ]
    if not questions:
        raise ConfigError("--against has no question; give files of evaluation sets")
    return questions


def make_check(questions: Sequence[EvalQuestion], mode: Mode) -> Check:
    """Return the rule of a mode."""
    return OverlapCheck(questions) if mode == "coverage" else PaperCheck(questions)


def _meet_all(database: sqlite3.Connection, check: Check, tasks: str, field: str | None) -> int:
    """Store and count the matches of every row; return the number of rows.

    Rows with an equal id and text in the database are not read again; from the first different one on all
    are.
    """
    stored = database.execute("SELECT digest, met FROM met ORDER BY number")
    number, fresh, batch = -1, False, list[_Row]()
    for number, (name, text, answer) in enumerate(problems(tasks, field)):
        shown = json.dumps([name, text, answer]).encode()
        digest = hashlib.blake2b(shown, digest_size=16).digest()
        known = None if fresh else stored.fetchone()
        if known is not None and known[0] == digest:
            check.count(known[1])
            continue
        if not fresh:
            fresh = True
            stored.close()
            database.execute("DELETE FROM met WHERE number >= ?", (number,))
        met = check.meet(text, answer)
        check.count(met)
        batch.append((number, digest, json.dumps(name), met))
        if len(batch) == COMMITTED_ROWS:
            _commit(database, batch)
    _commit(database, batch)
    database.execute("DELETE FROM met WHERE number > ?", (number,))
    return number + 1


def _commit(database: sqlite3.Connection, batch: list[_Row]) -> None:
    database.execute("BEGIN")
    database.executemany("INSERT INTO met VALUES (?, ?, ?, ?)", batch)
    database.execute("COMMIT")
    batch.clear()


def _write(database: sqlite3.Connection, check: Check, questions: Sequence[EvalQuestion], out: Path) -> Checked:
    """Judge all rows in their order and write the whole file."""
    levels: Counter[str] = Counter(dict.fromkeys(LEVELS, 0))
    by_set: dict[str, Counter[str]] = {}
    with whole_file(out) as file:
        for name, met in database.execute("SELECT name, met FROM met ORDER BY number"):
            found = check.judge(met)
            levels[found.level] += 1
            if found.question is not None:
                by_set.setdefault(questions[found.question].file, Counter())[found.level] += 1
            row = {"id": json.loads(name), **evidence_of(found, questions)}
            file.write(json.dumps(row).encode() + b"\n")
    asked = Counter(question.file for question in questions)
    return Checked(levels=levels, by_set={k: dict(sorted(v.items())) for k, v in by_set.items()}, questions=asked)


def evidence_of(found: TaskVerdict, questions: Sequence[EvalQuestion]) -> dict[str, Any]:
    """Return a verdict as JSON, with its question."""
    evidence: dict[str, Any] = {"level": found.level, "score": round(found.score, 4)}
    if found.question is not None:
        question = questions[found.question]
        against = {"file": question.file, "id": question.id}
        evidence |= {"rule": found.rule, "against": against, "shared": found.shared}
    return evidence


def problems(
    source: str, field: str | None, *, split: str = "train", revision: str = ""
) -> Iterator[tuple[str | int, str, str]]:
    """Yield the id of every row (its own or a hash of its text), its problem, and its answer or "".

    ConfigError names a bad row.
    """
    for where, row in rows_from(source, Path(), split=split, revision=revision or None):
        if not isinstance(row, Mapping):
            raise ConfigError(f"{where} is no object; each row must map field names to values")
        text = _problem(row, field, where)
        value = next((row[name] for name in ANSWERS if isinstance(row.get(name), str | int | float)), "")
        answer = str(value).rpartition("####")[2].strip()
        id_ = row.get("id")
        yield (
            id_ if isinstance(id_, str | int) else content_id("", text, str(row.get("answer", ""))),
            text,
            answer if len(answer) <= LONGEST_ANSWER else "",
        )


def _problem(row: Mapping[str, Any], field: str | None, where: str) -> str:
    names = FIELDS if field is None else (field,)
    value = next((row[name] for name in names if name in row), None)
    if isinstance(value, list):  # a conversation: the user's last message
        said = [m.get("content") for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        value = said[-1] if said else None
    if isinstance(value, str) and value.strip():
        return value
    known = ", ".join(map(repr, list(row)[:12]))
    raise ConfigError(
        f"{where} has no problem in {' or '.join(map(repr, names))}; it has {known}: name one with --field"
    )
