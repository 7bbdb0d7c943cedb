"""The builder of a generation: ids, log-probs and version spans of a turn or a trajectory so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rocstar.engine.inference.base import Generation, StopReason


@dataclass(slots=True, kw_only=True, eq=False)
class Written:
    """Invariant: one log-prob per id, None where no policy wrote it; the spans lie in order, and no two that
    meet are of one version."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """(start, end, version) over `ids`."""
    cached_tokens: int | None = None
    """Cached tokens of the first piece: later pieces reuse its KV."""

    def add(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float | None],
        spans: Iterable[tuple[int, int, int]] = (),
        cached_tokens: int | None = None,
    ) -> None:
        """Append a piece; its spans are over its own ids."""
        start = len(self.ids)
        self.ids += ids
        self.logprobs += logprobs
        for a, b, version in spans:
            begin = start + a
            if self.spans and self.spans[-1][1:] == (begin, version):
                begin = self.spans.pop()[0]
            self.spans.append((begin, start + b, version))
        if self.cached_tokens is None:
            self.cached_tokens = cached_tokens

    def add_generation(self, piece: Generation) -> None:
        """Append the tokens of an engine."""
        self.add(piece.ids, piece.logprobs, piece.version_spans, piece.cached_tokens)

    def result(self, finish: StopReason) -> Generation:
        """All of it as one completion, of which the policy wrote every token."""
        return Generation(
            ids=tuple(self.ids),
            logprobs=tuple(p for p in self.logprobs if p is not None),
            version_spans=tuple(self.spans),
            finish=finish,
            cached_tokens=self.cached_tokens or 0,
        )
