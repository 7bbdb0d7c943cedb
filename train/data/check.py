"""`rocstar data check`: tasks against the questions of evaluation sets; a row per task, in their order.

    {"id": ..., "level": "twin", "score": 0.93, "rule": "coverage but for numbers",
     "against": {"file": "math500.jsonl", "id": ...}, "shared": "the words that they share"}

The same tasks and sets give the same bytes. The file appears whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rocstar.train.data.overlap import LEVELS, EvalQuestion, OverlapCheck, TaskVerdict
from rocstar.train.data.paper_rule import PaperCheck
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.targets import check_file
from rocstar.train.tasks.data import content_id
from rocstar.train.tasks.rows import rows_of

Mode = Literal["coverage", "paper"]
FIELDS: Final = ("question", "problem", "prompt", "messages", "input")
"""Where a row's problem is looked for, if no field is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was found, by level and by set."""

    levels: Mapping[str, int]
    by_set: Mapping[str, Mapping[str, int]]
    """Of each set: tasks of each level but clean."""
    questions: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {"levels": dict(self.levels), "sets": self.by_set, "questions": dict(self.questions)}

    def as_text(self) -> str:
        """A table for people."""
        total = sum(self.levels.values())
        lines = [f"{level:10} {self.levels[level]:8,} of {total:,}" for level in LEVELS]
        for name, count in self.questions.items():
            found = ", ".join(f"{n:,} {level}" for level, n in self.by_set.get(name, {}).items()) or "nothing"
            lines.append(f"against {name} ({count:,} questions): {found}")
        return "\n".join(lines)


def check_tasks(
    tasks: str,
    against: Sequence[str],
    out: Path,
    *,
    mode: Mode = "coverage",
    field: str | None = None,
    force: bool,
) -> Checked:
    """Judge every task and write what became of it.

    Args:
        tasks: a JSONL or Parquet file, a folder of them, or a hub data set, as in a recipe.
        against: the same of evaluation sets.
        out: the file to write; `force` replaces it.
        mode: paper: the plain rule of any 8 words.
        field: where a row's problem is; None: the first of FIELDS that the row has.

    Raises:
        ConfigError: a source or the target cannot be used; nothing is written.
    """
    check_file(out, force=force)
    questions = [
        EvalQuestion(file=_name(source), id=str(name), text=text)
        for source in against
        for name, text in problems(source, field)
    ]
    if not questions:
        raise ConfigError("--against has no question; give files of evaluation sets")
    check = OverlapCheck(questions) if mode == "coverage" else PaperCheck(questions)
    names = []
    for name, text in problems(tasks, field):
        names.append(name)
        check.add(text)
    if not names:
        raise ConfigError(f"{tasks!r} has no task; give a file with at least one")
    levels: Counter[str] = Counter(dict.fromkeys(LEVELS, 0))
    by_set: dict[str, Counter[str]] = {}
    partial = out.with_name(out.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            for name, found in zip(names, check.overlaps(), strict=True):
                levels[found.level] += 1
                if found.question is not None:
                    by_set.setdefault(questions[found.question].file, Counter())[found.level] += 1
                file.write(json.dumps(_row(name, found, questions)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    asked = Counter(question.file for question in questions)
    return Checked(
        levels=levels, by_set={k: dict(sorted(v.items())) for k, v in by_set.items()}, questions=asked
    )


def _row(name: str | int, found: TaskVerdict, questions: Sequence[EvalQuestion]) -> dict[str, Any]:
    row: dict[str, Any] = {"id": name, "level": found.level, "score": round(found.score, 4)}
    if found.question is not None:
        question = questions[found.question]
        against = {"file": question.file, "id": question.id}
        row |= {"rule": found.rule, "against": against, "shared": found.shared}
    return row


def problems(source: str, field: str | None) -> Iterator[tuple[str | int, str]]:
    """The id of every row, its own or a hash of its text, and its problem. ConfigError names a bad row."""
    for where, row in rows_of(DataConfig(source=source), Path()):
        if not isinstance(row, Mapping):
            raise ConfigError(f"{where} is no object; each row must map field names to values")
        text = _problem(row, field, where)
        given = row.get("id")
        yield (
            given if isinstance(given, str | int) else content_id("", text, str(row.get("answer", ""))),
            text,
        )


def _problem(row: Mapping[str, Any], field: str | None, where: str) -> str:
    names = FIELDS if field is None else (field,)
    value = next((row[name] for name in names if name in row), None)
    if isinstance(value, list):  # a conversation: what the user said last
        said = [m.get("content") for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        value = said[-1] if said else None
    if isinstance(value, str) and value.strip():
        return value
    known = ", ".join(map(repr, list(row)[:12]))
    raise ConfigError(
        f"{where} has no problem in {' or '.join(map(repr, names))}; it has {known}: name one with --field"
    )


def _name(source: str) -> str:
    return Path(source).name or source
