"""The evaluation questions that a recipe also trains on, as an evaluation records them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rocstar.engine.types import Task

RULE: Final = "rocstar data check: duplicate or near"
FOUND: Final = ("rule", "overlap", "left_out_of_training", "questions")
"""The keys of the result of `Learned.found`."""
Question = tuple[str, str]
"""A set's label and a task's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The questions of a recipe's sets that are among its tasks, and in its conversations."""

    tasks: frozenset[Question] = frozenset()
    texts: frozenset[Question] = frozenset()
    is_empty: bool = True
    """The recipe has no training data."""

    def found(self, label: str, tasks: Sequence[Task], *, left_out: bool) -> dict[str, Any] | None:
        """Return the questions of a set that the recipe trains on, as JSON; None if it has no training data.

        `left_out`: the recipe excludes these tasks from its stages and demonstrations, so that only its
        conversations can contain them.
        """
        if self.is_empty:
            return None
        names = {(label, task.id) for task in tasks}
        in_tasks, in_texts = names & self.tasks, names & self.texts
        return {
            "rule": RULE,
            "overlap": len(in_tasks | in_texts),
            "left_out_of_training": left_out,
            "questions": sorted(name for _, name in (in_texts if left_out else in_tasks | in_texts)),
        }
