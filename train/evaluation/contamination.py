"""Which questions of a set are among the tasks that a recipe learns from: exact matches of the whole problem.

Whitespace and case aside. A reworded problem is not found: nothing here says that a set is clean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rocstar.engine.types import Task
from rocstar.train.recipe.config import Recipe
from rocstar.train.tasks.data import problem_of

RULE = "exact match of the problem, whitespace and case aside"
FOUND = ("rule", "overlap", "left_out_of_training", "questions")
"""What `Trained.found` gives."""


class Trained:
    """What a recipe gives to learn from, to look problems up in."""

    def __init__(self, tasks: Iterable[Task], texts: Iterable[str] = ()) -> None:
        self._tasks = {problem_of(task) for task in tasks}
        self._texts = {" ".join(text.casefold().split()) for text in texts}

    @classmethod
    def of(cls, recipe: Recipe, given: Sequence[Task]) -> Trained:
        """`given`: the recipe's tasks; what users say in its conversations is added."""
        sft = recipe.sft
        if not sft.steps or sft.data == "demonstrations":
            return cls(given)
        from rocstar.train.learner.sft import read_conversations  # torch: who judges again needs none

        rows = read_conversations(Path(sft.data))
        said = (m["content"] for row in rows for m in row["messages"] if m["role"] == "user")
        return cls(given, (text for text in said if isinstance(text, str)))

    @property
    def is_empty(self) -> bool:
        return not (self._tasks or self._texts)

    def found(self, tasks: Sequence[Task], *, left_out: bool) -> dict[str, Any] | None:
        """What of a set is learned from, as JSON; None where the recipe gives nothing to learn from.

        `left_out`: the recipe itself keeps these tasks out of its stages and demonstrations, so that only its
        conversations can have them.
        """
        if self.is_empty:
            return None
        problems = {task.id: problem_of(task) for task in tasks}
        in_tasks = {name for name, problem in problems.items() if problem in self._tasks}
        in_texts = {name for name, problem in problems.items() if problem in self._texts}
        return {
            "rule": RULE,
            "overlap": len(in_tasks | in_texts),
            "left_out_of_training": left_out,
            "questions": sorted(in_texts if left_out else in_tasks | in_texts),
        }
