"""Soft penalties on length and turns: how the rewards of kept siblings fall before the advantages are taken.

    overlong   r_i -= clip((n_i - (limit - buffer)) / buffer, 0, 1)
               DAPO (arXiv 2503.14476), Eq. 13: within the last `buffer` tokens before the limit the reward falls
               linearly, by 1 at the limit; n counts the policy's tokens and the tools', as the limit does.
    shares     r_i -= max(0, mean(r)) * (length * l_i / max(l) + turns * u_i / max(u))
               prime-rl, orchestrator/algo/grpo.py (there 0.25 and 0.1): l counts the policy's tokens, u its turns,
               those before a branch included, both relative to the longest sibling. In a group that is seldom
               right, length costs little.

A penalty can bring a correct attempt below the mean of its group, so that its tokens become less likely although it
was right (AdaTIR, arXiv 2601.14696). `not_below_zero` keeps A >= 0 there: advantages then no longer sum to 0. A
value below 0 without a penalty stays so: a segment before a fork that mostly fails, a turn that an estimator blames.

The record keeps the reward of the judge, by which Resample-on-Correct splits and a group without signal is known:
a group in which all are right teaches nothing, whatever its lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum

from rocstar.train.algorithm.advantages.sample import Advantage, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """The weights of the penalties; 0 turns one off.

    Invariant: 0 <= buffer < limit, or both are 0.
    """

    length: float = 0.0
    turns: float = 0.0
    buffer: int = 0
    limit: int = 0
    """The most tokens of a response, tool results included; read with a buffer only."""

    def __post_init__(self) -> None:
        if self.buffer and not 0 < self.buffer < self.limit:
            raise ValueError(f"need 0 < buffer < limit, got buffer={self.buffer}, limit={self.limit}")

    def of(self, samples_G: Sequence[Sample]) -> list[float]:
        """Return the penalty of each sibling, at least 0. A group without tokens loses nothing by length."""
        mean = max(0.0, fsum(sample.reward for sample in samples_G) / max(1, len(samples_G)))
        lengths = [sample.num_tokens + sample.shared_tokens for sample in samples_G]
        longest = max(lengths, default=0) or 1
        most_turns = max((len(sample.tokens_U) for sample in samples_G), default=0) or 1
        return [
            self.overlong(length + sample.tool_tokens)
            + mean * (self.length * length / longest + self.turns * len(sample.tokens_U) / most_turns)
            for sample, length in zip(samples_G, lengths, strict=True)
        ]

    def overlong(self, tokens: int) -> float:
        """Return the overlong penalty of a response, from 0 to 1."""
        return min(1.0, max(0.0, (tokens - self.limit) / self.buffer + 1)) if self.buffer else 0.0

    def applied(self, samples_G: Sequence[Sample]) -> list[Sample]:
        """Return the siblings with their penalized rewards."""
        falls = zip(samples_G, self.of(samples_G), strict=True)
        return [replace(sample, reward=sample.reward - fall) for sample, fall in falls]


def not_below_zero(
    samples_G: Sequence[Sample], plain_G: Sequence[Advantage], given_G: Sequence[Advantage]
) -> list[Advantage]:
    """Return the penalized advantages; those of correct siblings are raised to 0, or to the plain ones, which have no
    penalty, where these are below 0, token by token."""
    triples = zip(samples_G, plain_G, given_G, strict=True)
    return [_raised(plain, given, s.num_tokens) if s.is_correct else given for s, plain, given in triples]


def _raised(plain: Advantage, given: Advantage, num_tokens: int) -> Advantage:
    if isinstance(plain, int | float) and isinstance(given, int | float):
        return max(given, min(0.0, plain))
    of_tokens = ([one] * num_tokens if isinstance(one, int | float) else one for one in (plain, given))
    return tuple(max(after, min(0.0, before)) for before, after in zip(*of_tokens, strict=True))
