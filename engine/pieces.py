"""One turn that was written in pieces: cut short on one replica, continued on another."""

from __future__ import annotations

from dataclasses import dataclass, field

from rocstar.engine.inference.base import Generation, StopReason


@dataclass(slots=True, eq=False)
class Pieces:
    """Invariant: one log-prob per id, and the version spans tile the ids in order."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    cached_tokens: int | None = None

    def add(self, piece: Generation) -> None:
        """Append what one replica wrote. Of spans that meet in the same version one is made."""
        start = len(self.ids)
        self.ids += piece.ids
        self.logprobs += piece.logprobs
        for a, b, version in piece.version_spans:
            begin = start + a
            if self.spans and self.spans[-1][1:] == (begin, version):
                begin = self.spans.pop()[0]
            self.spans.append((begin, start + b, version))
        if self.cached_tokens is None:
            self.cached_tokens = piece.cached_tokens

    def result(self, finish: StopReason) -> Generation:
        return Generation(
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            version_spans=tuple(self.spans),
            finish=finish,
            cached_tokens=self.cached_tokens or 0,
        )
