"""One request to SGLang and its tokens so far. Every answer is verified.

Several requests may make one answer: the server stops at the model's end of text, which is not a stop unless
requested.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rocstar.engine.inference.base import GenerationBuilder, Heard, InferenceError, StopReason


@dataclass(slots=True, kw_only=True)
class LiveRequest:
    """A request that `generate` waits for."""

    rid: str
    call: asyncio.Future[dict[str, Any]] | None = None
    failure: InferenceError | None = None
    aborted: bool = False
    heard: Heard | None = None
    """The callback for each token, or None if the response is not streamed."""
    num_delivered: int = 0
    """Tokens of the present reply that `heard` has."""
    written: GenerationBuilder = field(default_factory=GenerationBuilder)

    def deliver(self, new: Sequence[int]) -> None:
        """Call `heard` with new tokens, behind those of the replies before."""
        assert self.heard is not None, "only a streamed request delivers tokens"
        for place, token in enumerate(new, len(self.written.ids) + self.num_delivered):
            self.heard(place, token, math.nan)
        self.num_delivered += len(new)

    def take(self, reply: dict[str, Any], *, asked: int, versions: Mapping[str, int]) -> StopReason:
        """Append the reply's tokens and return its finish reason. `versions`: published versions by label.

        A "length" with fewer tokens than requested is the KV pool's limit: `aborted`, not the policy's end.
        Raises InferenceError(bad_reply) for an inconsistent reply, or one of an unpublished version.
        """
        try:
            meta = reply["meta_info"]
            new = reply["output_ids"]
            scored = meta.get("output_token_logprobs", [])
            spans = meta.get("weight_versions", [])
            kind = meta["finish_reason"]["type"]
            scores, tokens, _ = zip(*scored, strict=True) if scored else ((), (), ())
            logprobs = list(map(float, scores))
            if list(tokens) != new:
                raise ValueError(f"{len(new)} ids but {len(scored)} log-probs, or other tokens'")
            if kind not in ("stop", "length", "abort") or not (new or kind == "abort") or len(new) > asked:
                raise ValueError(f"finish {kind!r} with {len(new)} of {asked} tokens")
            if sum(span["end"] - span["start"] for span in spans) != len(new):
                raise ValueError(f"versions {spans} do not cover {len(new)} tokens")
            found = [
                (span["start"], span["end"], versions[span["version"]])
                for span in spans
                if span["end"] > span["start"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            detail = f"{type(error).__name__}: {error}; {str(reply)[:300]}"
            raise InferenceError("bad_reply", detail, retryable=True) from error
        self.written.add(new, logprobs, found, meta.get("cached_tokens") or 0)
        self.num_delivered = 0
        if kind == "stop":
            return StopReason.stop
        return StopReason.length if kind == "length" and len(new) == asked else StopReason.aborted


def generate_body(
    ids: list[int], max_new_tokens: int, stop_ids: frozenset[int], temperature: float, rid: str
) -> dict[str, Any]:
    """Plain softmax sampling, every default of the server's overridden; log-probs of the output alone."""
    return {
        "rid": rid,
        "input_ids": ids,
        "sampling_params": {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "stop_token_ids": sorted(stop_ids),
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "skip_special_tokens": False,
        },
        "return_logprob": True,
        "logprob_start_len": -1,
    }


class StreamedReply:
    """Builds the complete answer of SGLang from its events.

    Each event has all tokens so far, or with `--incremental-streaming-output` those after the event before:
    `completion_tokens` shows which. Only the last one has the versions of the weights.

    Invariant: ids are delivered once and in order; `reply` equals the answer of the same request without
    streaming.
    """

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
