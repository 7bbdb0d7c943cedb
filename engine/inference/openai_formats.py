"""The request and answer formats of /v1/completions endpoints, and the token ids of their answers.

    form          prompt  an answer has                             seen of
    SENT_IDS      ids     `token_ids`, with their log-probs         vLLM, SGLang
    SPELLED_IDS   ids     log-probs with id and text of a token     llama.cpp
    TEXT          text    text alone                                others

Every form requests the model's whole distribution: servers have settings of their own, and vLLM those of the
model's generation_config.json, for the fields that a request leaves out.

A choice gives the same ids complete or streamed:

    piece, piece, ... ──> StreamedChoice.add ──> the new ids
                               └─> of its form: SentIds   ids from the endpoint        vLLM, SGLang
                                                SpelledIds  ids with their text          llama.cpp
                                                WordIds   text alone, in whole words   others

A complete choice is a stream of one piece.
"""

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from rocstar.engine.chat.chat import Tokenizer
from rocstar.engine.inference.base import Heard, InferenceError, StopReason

BETWEEN_WORDS = re.compile(r"(?<=\S)(?= \w)")
"""Before the blank of a word that has begun: no later text changes the tokens before it."""
STEP = 64
"""A text is encoded anew when it has grown by this part of it: in all it costs so many times one encoding."""
Scored = list[tuple[int, float]]
"""Ids, each with its log-prob; NaN where that is not known."""


class SentIds:
    """`token_ids` of each piece, with `token_logprobs` where the endpoint gives them."""

    def __init__(self, *, with_logprobs: bool) -> None:
        self._with_logprobs = with_logprobs
        self._ids: list[int] = []
        self._logprobs: list[float] = []

    def take(self, piece: Mapping[str, Any]) -> list[int]:
        ids = list(piece.get("token_ids") or [])
        self._ids += ids
        if self._with_logprobs:
            scored = (piece.get("logprobs") or {}).get("token_logprobs") or []
            self._logprobs += [float(logprob) for logprob in scored]
        return ids

    def whole(self, counted: int | None) -> Scored:
        if not self._with_logprobs:
            return [(token, math.nan) for token in self._ids]
        if len(self._logprobs) != len(self._ids):
            raise ValueError(f"{len(self._ids)} ids without a log-prob each")
        return list(zip(self._ids, self._logprobs, strict=True))


class SpelledIds:
    """Ids with their log-probs and the text of each.

    llama.cpp leaves out a token that ends in the middle of a character: its text comes with the one that ends
    the character. So ids are delivered as far as their text equals the answer's text. If in the end there are
    fewer ids than tokens, the remaining text is encoded, and its log-probs are unknown.

    Invariant: the ids before `_sure` spell the first `_sure_bytes` bytes of the text.
    """

    def __init__(self, codec: Tokenizer, *, with_logprobs: bool) -> None:
        self._codec, self._with_logprobs = codec, with_logprobs
        self._ids: Scored = []
        self._text = bytearray()
        self._sure = self._sure_bytes = 0
        self._said, self._spelled = bytearray(), bytearray()
        """The answer's text after `_sure`, and the text of its ids."""

    def take(self, piece: Mapping[str, Any]) -> list[int]:
        known = self._sure
        for token in (piece.get("logprobs") or {}).get("content") or []:
            self._ids.append((token["id"], float(token["logprob"]) if self._with_logprobs else math.nan))
            self._said += bytes(token["bytes"] or ())
            self._spelled += self._codec.decode([token["id"]], skip_special_tokens=True).encode()
            # A possible stop text is sent later than its ids; the text of an omitted token has no id.
            if self._said == self._spelled:
                self._sure, self._sure_bytes = len(self._ids), self._sure_bytes + len(self._said)
                self._said.clear()
                self._spelled.clear()
        self._text += (piece.get("text") or "").encode()
        return [token for token, _ in self._ids[known : self._sure]]

    def whole(self, counted: int | None) -> Scored:
        if counted == len(self._ids):
            return self._ids
        rest = self._text[self._sure_bytes :].decode(errors="replace")
        anew = self._codec.encode(rest, add_special_tokens=False) if rest else []
        return [*self._ids[: self._sure], *((token, math.nan) for token in anew)]


class WordIds:
    """Ids of a growing text, in whole words. They equal the codec's ids of the complete text, except for a
    tokenizer that joins text across a blank."""

    def __init__(self, codec: Tokenizer) -> None:
        self._codec, self._text = codec, ""
        self._ids: list[int] = []
        self._upto = 0
        """`_ids` are those of so many characters."""

    def take(self, piece: Mapping[str, Any]) -> list[int]:
        self._text += piece.get("text") or ""
        ends = [found.start() for found in BETWEEN_WORDS.finditer(self._text, self._upto)]
        if not ends or ends[-1] - self._upto <= self._upto // STEP:
            return []
        ids, before = self._encoded(self._text[: ends[-1]]), len(self._ids)
        if ids[:before] != self._ids:
            return []
        self._ids, self._upto = ids, ends[-1]
        return ids[before:]

    def whole(self, counted: int | None) -> Scored:
        ids = self._encoded(self._text)
        if ids[: len(self._ids)] != self._ids:
            ids = self._ids + self._encoded(self._text[self._upto :])
        return [(token, math.nan) for token in ids]

    def _encoded(self, text: str) -> list[int]:
        """No token of a beginning is put before it: it goes on from a prompt."""
        return self._codec.encode(text, add_special_tokens=False)


ChoiceIds = SentIds | SpelledIds | WordIds
"""Makes ids of a choice as it comes. Invariant: `whole` begins with the ids that `take` gave.

`take` returns the new ids of a piece; it raises AttributeError, KeyError, TypeError or ValueError for an
invalid one. `whole` returns all ids at the end; `counted` is the number of tokens that the endpoint says it
wrote. It raises ValueError where they do not add up."""


class StreamedChoice:
    """Invariant: the delivered ids are the first ids of `scored`, each once and in order.

    Args:
        ids: converts pieces to ids, by the endpoint's format.
        heard: called with each id as it arrives; None without a listener.
        start: number of ids of this turn that earlier answers delivered.
        most: number of ids of this turn to deliver; the reader of the answer handles the rest.
    """

    def __init__(self, ids: ChoiceIds, *, heard: Heard | None = None, start: int = 0, most: int = 0) -> None:
        self._ids, self._heard, self._next, self._most = ids, heard, start, most
        self.finish: str | None = None
        """Why it ended, as the endpoint says it; None = it has not."""
        self.counted: int | None = None
        """Tokens that the endpoint says it wrote; None = it has not said."""

    def add(self, event: Any) -> None:
        """Add a piece, and deliver its new ids. Raise InferenceError(bad_reply) for an invalid piece."""
        try:
            self.counted = (event.get("usage") or {}).get("completion_tokens", self.counted)
            if event["choices"]:  # the last event of some servers has usage alone
                piece = event["choices"][0]
                self.finish = piece.get("finish_reason") or self.finish
                new = self._ids.take(piece)
                if self._heard is not None:
                    for token in new[: max(0, self._most - self._next)]:
                        self._heard(self._next, token, math.nan)
                        self._next += 1
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            detail = f"{type(error).__name__}: {error}; {str(event)[:300]}"
            raise InferenceError("bad_reply", detail, retryable=True) from error

    def scored(self) -> Scored:
        """Its ids and their log-probs, at its end. ValueError where they do not add up."""
        return self._ids.whole(self.counted)


STANDARD: Mapping[str, Any] = {"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""The settings of OpenAI's API that change nothing."""
NEUTRAL: Mapping[str, Any] = {**STANDARD, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "repeat_penalty": 1.0}
"""Those of servers beyond it, too: -1 is every token to all of them, the last two are one thing's names."""
STREAMED: Mapping[str, Any] = {"stream": True}
STREAMED_WITH_USAGE: Mapping[str, Any] = {**STREAMED, "stream_options": {"include_usage": True}}
"""The last event has the number of tokens: for text, the only sign that the server truncated it."""
ENDS: Mapping[str, StopReason] = {"stop": StopReason.stop, "length": StopReason.length}
"""Any other reason (an abort, an error, a filter) is of the server, and no end of the policy's."""


class EndpointFormat(StrEnum):
    """The formats that an endpoint accepts and returns."""

    SENT_IDS = "ids"
    SPELLED_IDS = "ids with their text"
    TEXT = "text"


def detect_format(choice: Mapping[str, Any]) -> EndpointFormat:
    """The form of an endpoint that answered a prompt of ids with this."""
    if isinstance(choice.get("token_ids"), list):
        return EndpointFormat.SENT_IDS
    content = (choice.get("logprobs") or {}).get("content")
    first = content[0] if isinstance(content, list) and content else None
    is_spelled = isinstance(first, dict) and {"id", "bytes", "logprob"} <= first.keys()
    return EndpointFormat.SPELLED_IDS if is_spelled else EndpointFormat.TEXT


def build_request(
    form: EndpointFormat,
    ids: Sequence[int],
    stop_ids: frozenset[int],
    codec: Tokenizer | None,
    neutral: Mapping[str, Any],
) -> dict[str, Any]:
    """The fields of a request that depend on its form."""
    if form is EndpointFormat.SENT_IDS:
        return {
            **neutral,
            "prompt": list(ids),
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": sorted(stop_ids),
            "skip_special_tokens": False,
        }
    assert codec is not None, "a form with text needs a codec"
    texts = {"stop": [codec.decode([token]) for token in sorted(stop_ids)]} if stop_ids else {}
    if form is EndpointFormat.SPELLED_IDS:
        return {**neutral, **texts, "prompt": list(ids), "logprobs": 1}
    return {**neutral, **texts, "prompt": codec.decode(ids)}


def ids_of(form: EndpointFormat, codec: Tokenizer | None, *, with_logprobs: bool) -> ChoiceIds:
    """Return the converter from one answer to ids."""
    if form is EndpointFormat.SENT_IDS:
        return SentIds(with_logprobs=with_logprobs)
    assert codec is not None, "a form with text needs a codec"
    if form is EndpointFormat.SPELLED_IDS:
        return SpelledIds(codec, with_logprobs=with_logprobs)
    return WordIds(codec)


def parse_response(
    form: EndpointFormat, choice: StreamedChoice, most: int, stop_ids: frozenset[int]
) -> tuple[Scored, StopReason]:
    """The tokens of an answer that has ended, the stop token with them; of more than `most` the first ones,
    as `length`. One that ended as `stop` with another token ended at the model's own end of text.

    ValueError for one that does not add up; InferenceError(too_long) for one that the server cut.
    """
    if choice.finish is None or choice.finish not in ENDS:
        raise ValueError(f"it ended as {choice.finish!r}")
    finish, scored = ENDS[choice.finish], choice.scored()
    written = len(scored) if form is EndpointFormat.SENT_IDS else choice.counted
    if finish is StopReason.length and written is not None and written < most:
        detail = f"the server ended at {written} of {most} tokens: its context or its memory for it is full"
        raise InferenceError("too_long", detail, retryable=False)
    ends_in_stop = bool(scored) and scored[-1][0] in stop_ids
    if form is EndpointFormat.SENT_IDS:
        if not scored or (ends_in_stop and finish is StopReason.length) or len(scored) > most:
            raise ValueError(f"finish {choice.finish!r} with {len(scored)} of {most} ids")
        return scored, finish
    # A stop text is left out, and a turn ends with the first of the tokens it may mean.
    is_whole = form is EndpointFormat.SPELLED_IDS and len(scored) == choice.counted
    if finish is StopReason.stop and not ends_in_stop and not is_whole:
        scored = [*scored, (min(stop_ids), math.nan)]
    # A text encoded again may have more tokens than were sampled: a truncated one has not ended.
    return (scored, finish) if len(scored) <= most else (scored[:most], StopReason.length)
