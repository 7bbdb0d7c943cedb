"""How hard a task is for the present policy, from the groups it was tried in, and how often it is worth a try.

The rate p of correct attempts at a task has the posterior Beta(a, b), from a uniform prior:

    a = correct + 1        b = attempts - correct + 1

The policy moves, so earlier groups count less: a new group adds its counts to FORGET times the former ones
(temporal discounting as in MoPPS, arXiv 2507.04632, which draws p from the posterior where this takes means).

    rate   = E[p] = a / (a + b)
    weight = min(1, E[p (1 - p)] / (1/6)) = min(1, 6 a b / ((a + b) (a + b + 1)))

p (1 - p) is the variance of a reward of 0 or 1, which the gradient of a group is in proportion to ("learnability",
arXiv 2502.12272); 1/6 is its mean before any attempt. So an untried task and one that is solved about half of the
time have weight 1, and it falls towards 0 as a task turns out to be always or never solved.
"""

from __future__ import annotations

from dataclasses import dataclass

FORGET = 0.5
"""Share of the former counts that a new group leaves. One group of 8 is a noisy label: two count 1.5 times."""


@dataclass(frozen=True, slots=True)
class SolveRate:
    """Discounted counts of a task's scored attempts; both 0 before the first.

    Invariant: 0 <= correct <= attempts.
    """

    correct: float = 0.0
    attempts: float = 0.0

    def after(self, correct: float, attempts: float) -> SolveRate:
        """Return the counts after a group. One without a scored attempt changes nothing."""
        if not attempts:
            return self
        return SolveRate(FORGET * self.correct + correct, FORGET * self.attempts + attempts)

    @property
    def rate(self) -> float:
        """The posterior mean of the rate, within (0, 1)."""
        return (self.correct + 1) / (self.attempts + 2)

    @property
    def weight(self) -> float:
        """How much a further group is worth, within (0, 1]; 1 for a task that was never tried."""
        a, b = self.correct + 1, self.attempts - self.correct + 1
        return min(1.0, 6 * a * b / ((a + b) * (a + b + 1)))
