"""Estimators for rollouts that fork: the tree of a group's trajectories, and the credit of each segment.

    task ──> roots 0 .. N-1            a fork of k continuations behind turn t: the parent's own, number 0, and k - 1
             root ──> fork ──> ...     branches; a segment is what one continuation samples up to the next fork

    V(leaf) = reward        V(fork) = mean of V(c) over its continuations c        V(root) likewise, over the roots

fork_loo, leave-one-out at the fork:

    A(c) = w(c) * (V(c) - mean of V(c') over the other continuations c' of the same fork, or the other roots)
    w(c) = product of 1/k over the forks above c, its own included; 1 for a root

Unbiased, up to the factor that every estimator here shares (N roots, a mean over the step's tokens), if each fork
depends only on the history h before it, never on an outcome. E[V(fork) | h] is then the policy's value at h, and

    grad E[V(fork) | h] = 1/k * sum over c of E[grad log p(c) * (V(c) - b) + grad E[V behind c]]

for each b independent of c given h: other continuations are, c itself is not. Unrolled from the root, each segment
comes once, with w(c). Not so where leaves are pooled (a prefix that forks counts k times in V), where a baseline has
c in it (its gradient shrinks by (k - 1)/k, at small forks most), where a prefix trains with each of its leaves, or
with a division by a standard deviation.

treerl, after TreeRL (arXiv 2506.11902, section 3.2):

    A(c) = sqrt(L(c)) * (V(c) - V(root) + V(c) - V(fork of c))        L(c) leaves behind c

There each of the L(c) trajectories trains the segment, with 1/sqrt(L); here it trains once. The paper's V pools
leaves, this one does not. Biased: both baselines have c in them, sqrt(L) is not the path weight, and a first
segment has its advantage twice.

The plain baseline for a comparison at equal tokens is an estimator without a tree (`grpo`, `rloo` ...): each leaf
its own reward against all leaves of the group, for the tokens it sampled. It pools leaves: prefixes that fork, those
with an error say, weigh more, and a prefix has the credit of one of its k ends.

The tree has the kept trajectories only. One that was dropped takes the tokens that it sampled along; branches behind
it still compare with each other. A fork with one kept continuation is none: that one carries on the segment before.
With `rl.roc_mode` = "none" just failed trajectories are missing, and the proof holds as far as a failure is
independent of tokens and reward, for the rollouts: with `rl.fork_tokens` a branch may be cut before its parent
would be, and V is the value of that mixture. Resample-on-Correct chooses by outcome, with forks as without them.

Edge cases: without forks `fork_loo` has the bits of `rloo`. A continuation without others (a single root) has 0.

Legend: `_G` kept siblings of one task, branches included; `_U` turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rocstar.train.algorithm.advantages.sample import Advantage, Path, Sample, has_no_signal, per_group


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A segment with all that follows it; the root of the tree has the group's roots as continuations."""

    start: int
    """Turns before it."""
    value: float
    leaves: tuple[int, ...]
    """Numbers of the trajectories that pass it."""
    continuations: tuple[Continuation, ...] = ()
    """Those of the fork at its end; none of a leaf."""


Credit = Callable[[Continuation, Continuation, Continuation, float], float]
"""The advantage of a segment, from the tree, the fork, the segment, and the segment's path weight."""


@per_group
def fork_loo(samples_G: Sequence[Sample]) -> list[Advantage]:
    """Return w * (V - mean V of the other continuations) for the tokens that each sample sampled."""
    return credited(samples_G, _left_out)


@per_group
def treerl(samples_G: Sequence[Sample]) -> list[Advantage]:
    """Return sqrt(L) * (2 V - V(root) - V(fork)) for the tokens that each sample sampled."""
    return credited(samples_G, _global_and_local)


def path_weights(paths: Sequence[Path]) -> list[float]:
    """Return w of each leaf; those of a root's leaves sum to 1.

    Raises:
        ValueError: a path comes twice.
    """
    weights = [1.0] * len(paths)
    for _, segment, weight in _segments(_tree(paths, weights)):
        for leaf in segment.leaves:
            weights[leaf] = weight
    return weights


def credited(samples_G: Sequence[Sample], credit: Credit) -> list[Advantage]:
    """Return each sample's advantages: a number, or one for each token where its own segments differ.

    Raises:
        ValueError: a path comes twice.
    """
    paths = [sample.path or ((0, k),) for k, sample in enumerate(samples_G)]
    root = _tree(paths, [sample.reward for sample in samples_G])
    by_start: list[dict[int, float]] = [{} for _ in samples_G]
    for fork, segment, weight in _segments(root):
        given = credit(root, fork, segment, weight)
        for leaf in segment.leaves:
            by_start[leaf][segment.start] = given
    return [_of_tokens(*pair) for pair in zip(samples_G, by_start, strict=True)]


def _of_tokens(sample: Sample, by_start: dict[int, float]) -> Advantage:
    """The advantages of the segments that the sample passes, as those of its own tokens."""
    present, values_U = 0.0, []
    for turn in range(len(sample.tokens_U)):
        present = by_start.get(turn, present)
        values_U.append(present)
    values = sample.spread(values_U)
    return values if len(set(values)) > 1 else (values or [by_start[max(by_start)]])[0]


def _left_out(_: Continuation, fork: Continuation, segment: Continuation, weight: float) -> float:
    values = [one.value for one in fork.continuations]
    if has_no_signal(values):
        return 0.0
    total = math.fsum(values)
    return weight * (segment.value - (total - segment.value) / (len(values) - 1))


def _global_and_local(root: Continuation, fork: Continuation, segment: Continuation, _: float) -> float:
    return math.sqrt(len(segment.leaves)) * ((segment.value - root.value) + (segment.value - fork.value))


def _segments(fork: Continuation, weight: float = 1.0) -> Iterator[tuple[Continuation, Continuation, float]]:
    """Yield the fork, the segment and its path weight, for each segment, before those that follow it."""
    for segment in fork.continuations:
        yield fork, segment, weight
        yield from _segments(segment, weight / max(1, len(segment.continuations)))


def _tree(paths: Sequence[Path], rewards: Sequence[float]) -> Continuation:
    if len(set(paths)) < len(paths):
        raise ValueError(f"two trajectories of a group have one path: {sorted(paths)!r:.200}")
    choices = _choices(paths)
    roots = dict[tuple[int, int], list[int]]()
    for leaf, taken in enumerate(choices):
        roots.setdefault(taken[0], []).append(leaf)
    return _fork(0, [_grown(0, leaves, 1, choices, rewards) for leaves in roots.values()])


def _grown(
    start: int, leaves: list[int], depth: int, choices: Sequence[Path], rewards: Sequence[float]
) -> Continuation:
    """The segment that the leaves share, from their choice `depth` on; a fork with one choice is none."""
    while len(leaves) > 1:
        parts = dict[tuple[int, int], list[int]]()
        for leaf in leaves:
            parts.setdefault(choices[leaf][depth], []).append(leaf)
        depth += 1
        if len(parts) > 1:
            behind = [_grown(turn, part, depth, choices, rewards) for (turn, _), part in parts.items()]
            return _fork(start, behind)
    return Continuation(start=start, value=rewards[leaves[0]], leaves=tuple(leaves))


def _fork(start: int, continuations: Sequence[Continuation]) -> Continuation:
    values = [one.value for one in continuations]
    # Rounding would leave a trace of the mean of equal values.
    value = values[0] if has_no_signal(values) else math.fsum(values) / len(values)
    leaves = tuple(leaf for one in continuations for leaf in one.leaves)
    return Continuation(start=start, value=value, leaves=leaves, continuations=tuple(continuations))


def _choices(paths: Sequence[Path]) -> list[Path]:
    """Each path with the forks that it passed in its parents' own continuation, number 0, in the order of turns."""
    forks: dict[Path, set[int]] = {}
    for path in paths:
        for k in range(1, len(path)):
            forks.setdefault(path[:k], set()).add(path[k][0])
    found = []
    for path in paths:
        taken: list[tuple[int, int]] = []
        for k, choice in enumerate(path):
            until = path[k + 1][0] if k + 1 < len(path) else math.inf
            taken += [choice, *((turn, 0) for turn in sorted(forks.get(path[: k + 1], ())) if turn < until)]
        found.append(tuple(taken))
    return found
