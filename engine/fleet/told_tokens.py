"""The token stream of one turn: each token is delivered once, from whichever replica."""

from __future__ import annotations

from collections.abc import Sequence

from rocstar.engine.inference.base import Heard, Inference, TellsTokens


class ToldTokens:
    """Invariant: positions are delivered in order from 0, each once. A replica that takes a turn over writes
    the same tokens again, because their noise depends on (seed, position); delivered tokens stay valid.
    """

    def __init__(self, heard: Heard) -> None:
        self._heard, self._num = heard, 0

    def listen(self, replica: Inference, request_id: str, start: int) -> None:
        """Return the callback for a replica that writes from position `start` on, or None without a
        listener."""
        if isinstance(replica, TellsTokens):
            replica.on_tokens(request_id, lambda place, token: self._hear(start + place, token))

    def take(self, ids: Sequence[int], start: int) -> None:
        """Deliver the tokens of an ended turn from position `start` on."""
        for place, token in enumerate(ids, start):
            self._hear(place, token)

    def _hear(self, place: int, token: int) -> None:
        if place == self._num:
            self._num += 1
            self._heard(place, token)
