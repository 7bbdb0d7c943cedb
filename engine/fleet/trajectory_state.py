"""A trajectory in a fleet, between its first turn and its release, and how its present turn has fared."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from rocstar.engine.fleet.replicas import FleetLimits, Slot
from rocstar.engine.inference.base import Generation, Heard, Inference, InferenceError, StopReason, TellsTokens


@dataclass(slots=True, kw_only=True, eq=False)
class TrajectoryState:
    """Invariant: `home` is where the scheduler's books have it; only a guest runs elsewhere."""

    waiting: asyncio.Future[int | None] | None = None
    """While it waits for a grant: the replica, or None if it was aborted."""
    home: int | None = None
    granted: bool = False
    """The scheduler counts it among the running ones of `home`."""
    at: Slot | None = None
    """Where its turn runs now: its home, or the replica whose guest it is."""
    failures: Counter[int] = field(default_factory=Counter)
    """Failures of the present turn, by replica."""
    lost: int = 0
    """Replicas that went down while the present turn ran there, or after it failed there."""
    stream: TokenStream | None = None
    """The token stream of its present turn."""
    written: int = 0
    """Tokens of the present turn that were answered so far."""
    asking: bool = False
    aborted: bool = False
    finished: bool = False

    def grant(self, replica: int) -> None:
        assert self.waiting is not None, "only a turn that waits is granted"
        self.granted = True
        if not self.waiting.done():
            self.waiting.set_result(replica)

    def fail(self, error: InferenceError) -> None:
        """End its wait, if it waits."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(error)

    def is_given_up(self, limits: FleetLimits) -> bool:
        return self.failures.total() >= limits.max_attempts or self.lost >= limits.max_lost

    def finish(self, piece: Generation | None, *, full: bool) -> StopReason | None:
        """Why the turn is over; None if it goes on elsewhere."""
        if self.aborted:
            return StopReason.aborted if piece is None else piece.finish
        if piece is None or (piece.finish is StopReason.aborted and not full):
            return None
        return StopReason.length if piece.finish is StopReason.aborted else piece.finish


class TokenStream:
    """Invariant: positions are delivered in order from 0, each once. A replica that takes a turn over writes
    the same tokens again, because their noise depends on (seed, position); delivered tokens stay valid.
    """

    def __init__(self, heard: Heard) -> None:
        self._heard, self._num = heard, 0

    def listen(self, replica: Inference, request_id: str, start: int) -> None:
        """Deliver the tokens of a replica as they arrive, which writes from position `start` on."""
        if isinstance(replica, TellsTokens):
            replica.on_tokens(request_id, lambda place, *token: self._deliver(start + place, *token))

    def take(self, piece: Generation, start: int) -> None:
        """Deliver the tokens of an ended turn from position `start` on."""
        for place, (token, logprob) in enumerate(zip(piece.ids, piece.logprobs, strict=True), start):
            self._deliver(place, token, logprob)

    def _deliver(self, place: int, token: int, logprob: float) -> None:
        if place == self._num:
            self._num += 1
            self._heard(place, token, logprob)
