"""The change of a run's evaluations per question: the last against the first with the same questions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rocstar.train.evaluation.statistics.intervals import exact_mean
from rocstar.train.evaluation.statistics.paired import overall_difference
from rocstar.train.evaluation.stored_evaluations import EvaluationLocation, StoredEvaluation, find_evaluations
from rocstar.train.reading.diagnosis.history import HeldOutChange

SEED = 0


class HeldOut:
    """The evaluations of a run.

    ConfigError from each method for one that is damaged.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._place: EvaluationLocation | None = None
        self._read: dict[int, StoredEvaluation] = {}

    def has(self, step: int) -> bool:
        """Return True if there is an evaluation at a step; a new one is looked for in the folder."""
        if self._place is None or step not in self._place.by_step:
            if not any((self._run / "evaluations").glob("step_*/results.json")):
                return False
            self._place = find_evaluations(self._run)
        return step in self._place.by_step

    def change(self, step: int) -> HeldOutChange | None:
        """Return the change up to a step, at which there is one; None if no two share a question."""
        assert self._place is not None
        known = sorted(one for one in self._place.by_step if one is not None and one <= step)
        for first in known[:-1]:
            if differences := _differences(self._at(first), self._at(known[-1])):
                found = overall_difference(differences, np.random.default_rng(SEED))
                return HeldOutChange(
                    before=first, after=known[-1], difference=found.difference, interval=found.interval
                )
        return None

    def _at(self, step: int) -> StoredEvaluation:
        assert self._place is not None
        if step not in self._read:
            self._read[step] = self._place.read(step)
        return self._read[step]


def _differences(a: StoredEvaluation, b: StoredEvaluation) -> list[list[float]]:
    """Return for each common set B minus A of each question with a score in both."""
    found = []
    for name in sorted(a.sets.keys() & b.sets.keys()):
        of_a, of_b = a.sets[name], b.sets[name]
        pairs = [(_mean(of_a[q]), _mean(of_b[q])) for q in sorted(of_a.keys() & of_b.keys())]
        found.append([y - x for x, y in pairs if x is not None and y is not None])
    return [differences for differences in found if differences]


def _mean(scores: tuple[float | None, ...]) -> float | None:
    return exact_mean([score for score in scores if score is not None])
