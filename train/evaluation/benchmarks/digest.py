"""The digest of a set's tasks: the same for every file that asks and scores the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from rocstar.engine.plain_json import to_plain
from rocstar.engine.types import Task

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
