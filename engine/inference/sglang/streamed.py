"""Build the complete answer of SGLang from a token stream.

    event, event, ... last event ──> add ──> new ids
                                     reply ──> the answer, which LiveRequest.take checks as any other

Each event has all tokens so far, or with `--incremental-streaming-output` those after the event before:
`completion_tokens` shows which. Only the last one has the versions of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocstar.engine.inference.base import InferenceError


class StreamedReply:
    """Invariant: ids are delivered once and in order; `reply` equals the answer of the same request without
    streaming."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._scored: list[Any] = []
        self._last: Mapping[str, Any] | None = None

    def add(self, event: Any) -> list[int]:
        """The ids that are new. InferenceError(bad_reply) for what does not go on from the events before."""
        try:
            meta, ids = event["meta_info"], event["output_ids"]
            scored, total = meta.get("output_token_logprobs", []), meta["completion_tokens"]
            before = len(self.ids)
            if len(ids) == total and ids[:before] == self.ids:  # all so far
                ids, scored = ids[before:], scored[before:]
            elif len(ids) != total - before:
                raise ValueError(f"{len(ids)} of {total} ids behind {before}, or other ids than before")
            self._last = event
        except (KeyError, TypeError, ValueError) as error:
            detail = f"{type(error).__name__}: {error}; {str(event)[:300]}"
            raise InferenceError("bad_reply", detail, retryable=True) from error
        self.ids += ids
        self._scored += scored
        return list(ids)

    def reply(self) -> dict[str, Any]:
        """The whole answer. InferenceError(bad_reply) if there was no event."""
        if self._last is None:
            raise InferenceError("bad_reply", "a stream without an event", retryable=True)
        meta = {**self._last["meta_info"], "output_token_logprobs": self._scored}
        return {**self._last, "output_ids": self.ids, "meta_info": meta}
