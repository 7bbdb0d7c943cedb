"""OpenAI's columns of tokens and their log-probs, as /v1/completions gives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rocstar.engine.inference.base import PromptScores
from rocstar.engine.types import Origin, Trajectory


class TokenColumns:
    """Invariant: a place per token in every column, and `text_offset` is where its text begins in the text of
    all tokens before it. A log-prob that is not known is null.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """decode: text of ids."""
        self._decode = decode
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._tops: list[dict[str, float | None] | None] = []
        self._offsets: list[int] = []
        self._end = 0

    def add_prompt(self, ids: Sequence[int], scores: PromptScores) -> None:
        """A prompt: behind each token but the first stands the likeliest too, if that is another."""
        self._add(ids[0], None, None)
        for token, logprob, best, best_logprob in zip(
            ids[1:], scores.logprobs, scores.best_ids, scores.best_logprobs, strict=True
        ):
            text = self._decode([token])
            other = self._decode([best])
            if best != token and other == text:  # halves of characters look alike
                other = f"token_id:{best}"
            tops = {} if best == token else {other: _known(best_logprob)}
            self._add(token, logprob, {**tops, text: _known(logprob)})

    def add_written(self, trajectory: Trajectory) -> None:
        """What the policy wrote."""
        for segment in trajectory.segments:
            if segment.origin is Origin.policy:
                for at in range(segment.start, segment.end):
                    token, logprob = int(trajectory.ids[at]), float(trajectory.logprobs[at])
                    self._add(token, logprob, {self._decode([token]): _known(logprob)})

    def _add(self, token: int, logprob: float | None, tops: dict[str, float | None] | None) -> None:
        text = self._decode([token])
        self._tokens.append(text)
        self._logprobs.append(None if logprob is None else _known(logprob))
        self._tops.append(tops)
        self._offsets.append(self._end)
        self._end += len(text)

    def told(self) -> dict[str, Any]:
        """As `logprobs` of a choice."""
        return {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._tops,
            "text_offset": self._offsets,
        }


def _known(logprob: float) -> float | None:
    return logprob if math.isfinite(logprob) else None
