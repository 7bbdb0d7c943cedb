"""The tokens of one turn as they come, told once each, whichever replica writes them."""

from __future__ import annotations

from collections.abc import Sequence

from rocstar.engine.inference.base import Heard, Inference, TellsTokens


class ToldTokens:
    """Invariant: places are told in order from 0, each once. A replica that takes a turn over writes the same
    tokens again, for their noise is of (seed, place); what was told stays told.
    """

    def __init__(self, heard: Heard) -> None:
        self._heard, self._num = heard, 0

    def listen(self, replica: Inference, request_id: str, start: int) -> None:
        """To a replica that is about to write from place `start` on; one that tells nothing is not heard."""
        if isinstance(replica, TellsTokens):
            replica.on_tokens(request_id, lambda place, token: self._hear(start + place, token))

    def take(self, ids: Sequence[int], start: int) -> None:
        """What a replica wrote from place `start` on, now that it has ended."""
        for place, token in enumerate(ids, start):
            self._hear(place, token)

    def _hear(self, place: int, token: int) -> None:
        if place == self._num:
            self._num += 1
            self._heard(place, token)
