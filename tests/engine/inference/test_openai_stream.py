"""An OpenAI-compatible endpoint token by token, of text word by word."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.inference.base import InferenceError, Sampling, StopReason, TellsTokens
from rocstar.engine.inference.openai import OpenAIEndpoint
from rocstar.engine.inference.openai_formats import SentIds, SpelledIds, StreamedChoice, WordIds
from tests.fakes import asking
from tests.fakes.openai_endpoint import STOP, TOKENIZER, VOCAB, Endpoint
from tests.fakes.scripted_policy import ByteTokenizer

BPE = ByteTokenizer(corpus=["the answer is four and the word is other"] * 4)
HEARD, UNHEARD = "s0/t/0", "s0/t/1"
Told = list[tuple[int, int]]


ask = partial(asking.ask, max_new_tokens=9, stop_ids=frozenset({STOP, 13}), sampling=Sampling(temperature=1.0))


@asynccontextmanager
async def opened(server: Endpoint, **options: Any) -> AsyncIterator[tuple[OpenAIEndpoint, Told]]:
    codec = {} if server.with_ids else {"codec": TOKENIZER}
    async with server.serve() as url:
        async with OpenAIEndpoint(url, model="m", vocab_size=VOCAB, **{**codec, **options}) as endpoint:
            told: Told = []
            assert isinstance(endpoint, TellsTokens)
            endpoint.on_tokens(HEARD, lambda place, token, _: told.append((place, token)))
            yield endpoint, told


def in_halves(length: int) -> list[int]:
    return sorted({max(1, length // 2), length})


@pytest.mark.parametrize("cuts", [None, in_halves])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_it_is_the_answer_that_comes_at_once(cuts: Any, temperature: float) -> None:
    server = Endpoint(with_ids=True)
    server.cuts = cuts or server.cuts
    async with opened(server) as (endpoint, told):
        for ids in ([3], [11], [30]):
            sampling = Sampling(temperature=temperature)
            whole = await ask(endpoint, ids, UNHEARD, sampling=sampling)
            told.clear()
            got = await ask(endpoint, ids, sampling=sampling)
            assert (got.ids, got.finish, got.version_spans) == (whole.ids, whole.finish, whole.version_spans)
            assert repr(got.logprobs) == repr(whole.logprobs)
            assert told == list(enumerate(whole.ids))
        asked = server.requests[-1]
        assert asked["stream"] is True and asked["return_token_ids"] is True
        endpoint.release(HEARD)
        assert not endpoint._listeners
        await ask(endpoint, [3])
        assert "stream" not in server.requests[-1]


@pytest.mark.parametrize("room", [9, 40, 200])
async def test_of_text_whole_words_are_told(room: int) -> None:
    server = Endpoint(with_ids=False, text="the answer\n\nis <b>4</b>, and é🙂 is another word")
    async with opened(server) as (endpoint, told):
        prompt = TOKENIZER.encode("2+2?")
        whole = await ask(endpoint, prompt, UNHEARD, max_new_tokens=room)
        got = await ask(endpoint, prompt, max_new_tokens=room)
        assert (got.ids, got.finish) == (whole.ids, whole.finish)
        assert told == list(enumerate(got.ids))[: len(told)] and len(told) >= min(room - 1, 40)
        assert TOKENIZER.decode([token for _, token in told]) in server.text


@pytest.mark.parametrize(("change", "streams"), [({"token_ids": None}, True), ({"logprobs": None}, True), ({}, False)])
async def test_an_endpoint_that_streams_otherwise_is_asked_at_once(change: Any, streams: bool) -> None:
    """Its streams bring no ids, no log-probs, or there are none: asked once, and never again."""
    server = Endpoint(with_ids=True)
    server.streams, server.stream_change = streams, change
    async with opened(server) as (endpoint, told):
        assert await ask(endpoint, [3]) == await ask(endpoint, [3], UNHEARD)
        await ask(endpoint, [3])
        assert told == [] and sum("stream" in body for body in server.requests) == 1


async def test_what_was_told_is_kept_when_it_is_aborted(until: Any) -> None:
    for server in (Endpoint(with_ids=True), Endpoint(with_ids=False, text="one two three four five")):
        server.cuts = in_halves
        async with opened(server) as (endpoint, told):
            await ask(endpoint, [30])
            told.clear()
            server.release.clear()
            running = asyncio.create_task(ask(endpoint, [30]))
            await until(lambda: bool(told))
            await endpoint.abort(HEARD)
            got = await running
            assert got.finish is StopReason.aborted and len(got.ids) >= len(told)
            assert told == list(enumerate(got.ids))[: len(told)]
            if server.with_ids:
                assert got.logprobs == tuple(-0.5 - token / 1000 for token in got.ids)
            else:
                assert all(math.isnan(x) for x in got.logprobs)
            await server.closed.wait()


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_who_gives_up_closes_the_connection(until: Any, how: str) -> None:
    server = Endpoint(with_ids=True)
    async with opened(server) as (endpoint, told):
        await ask(endpoint, [3])
        told.clear()
        server.release.clear()
        deadline = asyncio.get_running_loop().time() + 0.5 if how == "late" else None
        running = asyncio.create_task(ask(endpoint, [3], deadline=deadline))
        await until(lambda: bool(told))
        if how == "cancelled":
            running.cancel()
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            await running
        await server.closed.wait()
        assert endpoint.load().running == 0


@pytest.mark.parametrize(
    ("spoiled", "kind"),
    [
        (b"", "replica_lost"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "server_error"),
        (b"data: {no\n\n", "bad_reply"),
        (b'data: {"choices": [7]}\n\n', "bad_reply"),
        (b"data: 7\n\n", "bad_reply"),
    ],
)
async def test_a_stream_that_fails_in_the_middle(spoiled: bytes, kind: str) -> None:
    server = Endpoint(with_ids=True)
    async with opened(server) as (endpoint, told):
        await ask(endpoint, [3])
        told.clear()
        server.spoils[2] = spoiled
        with pytest.raises(InferenceError) as caught:
            await ask(endpoint, [3])
        assert (caught.value.kind, caught.value.retryable) == (kind, True)
        assert told == [(0, 4), (1, 5)]
        server.spoils.clear()
        assert len((await ask(endpoint, [3])).ids) == 9


WORDS = st.lists(
    st.sampled_from(["the", " the", " ", "\n", "answer", " is", "four", "é🙂", "<|im_end|>", "4", " 4", ",", "_"]),
    max_size=20,
).map("".join)


@given(WORDS | st.text(max_size=30), st.data())
def test_ids_of_growing_text_are_those_of_the_whole(text: str, data: st.DataObject) -> None:
    text = text.encode("utf-8", "replace").decode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    words = WordIds(BPE)
    told = [token for piece in cut_up(text, cuts) for token in words.take({"text": piece})]
    ids = [token for token, _ in words.whole(None)]
    assert ids == BPE.encode(text) and ids[: len(told)] == told


def cut_up(text: str, cuts: Sequence[int]) -> list[str]:
    ends = [*cuts, len(text)]
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


class Joining:
    """A tokenizer that joins what a blank divides: an id for every text that is encoded at once."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        self.texts.append(text)
        return [len(self.texts) - 1]

    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
        return "".join(self.texts[k] for k in ids)


def test_what_was_told_comes_first_whatever_the_tokenizer_does() -> None:
    codec = Joining()
    words = WordIds(codec)
    told = [token for letter in "ab cd ef gh!" for token in words.take({"text": letter})]
    ids = [token for token, _ in words.whole(None)]
    assert told and ids[: len(told)] == told and codec.decode(ids) == "ab cd ef gh!"


def piece(text: str, *tokens: tuple[int, str], finish: str | None = None) -> dict[str, Any]:
    """As llama.cpp has it: ids with the text that each added."""
    content = [{"id": k, "logprob": -float(k), "bytes": list(added.encode())} for k, added in tokens]
    return {"choices": [{"text": text, "logprobs": {"content": content}, "finish_reason": finish}]}


A, LESS, B, FIRST, LAST = (*TOKENIZER.encode("a<b"), *TOKENIZER.encode("é"))


@pytest.mark.parametrize("at_once", [True, False])
def test_ids_that_come_with_their_text_are_the_ids(at_once: bool) -> None:
    """A special token adds none; what may become a stop text is held back, and comes with the next."""
    told: Told = []
    choice = StreamedChoice(SpelledIds(TOKENIZER, with_logprobs=True), heard=hearing(told), most=9)
    pieces = [piece("a", (A, "a")), piece("", (LESS, "")), piece("<b", (B, "<b")), piece("", (STOP, ""))]
    if at_once:
        pieces = [piece("a<b", (A, "a"), (LESS, "<"), (B, "b"), (STOP, ""))]
    for one in pieces:
        choice.add(one)
        assert len(told) != 2, "of the held back nothing is sure"
    choice.add({**piece("", finish="stop"), "usage": {"completion_tokens": 4}})
    ids = [A, LESS, B, STOP]
    assert choice.scored() == [(token, -float(token)) for token in ids] and told == list(enumerate(ids))


@pytest.mark.parametrize("at_once", [True, False])
def test_behind_a_character_in_two_tokens_the_text_is_encoded_anew(at_once: bool) -> None:
    """The first of the two never comes: of what follows no log-prob is known, and nothing is told."""
    told: Told = []
    choice = StreamedChoice(SpelledIds(TOKENIZER, with_logprobs=True), heard=hearing(told), most=9)
    pieces = [piece("a", (A, "a")), piece("é", (LAST, "é")), piece("b", (B, "b"))]
    if at_once:
        pieces = [piece("aéb", (A, "a"), (LAST, "é"), (B, "b"))]
    for one in pieces:
        choice.add(one)
    choice.add({**piece("", finish="length"), "usage": {"completion_tokens": 4}})
    scored = choice.scored()
    assert [token for token, _ in scored] == [A, FIRST, LAST, B] and scored[0] == (A, -float(A))
    assert all(math.isnan(logprob) for _, logprob in scored[1:]) and told == [(0, A)]


def hearing(told: Told) -> Any:
    return lambda place, token, _: told.append((place, token))


class Beginning:
    """A tokenizer that puts a token of a beginning before every text, unless told not to."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [int(letter) + 10 for letter in text if letter.isdigit()]

    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
        return ""


def test_no_beginning_is_put_before_an_answer() -> None:
    words, letters = WordIds(Beginning()), SpelledIds(Beginning(), with_logprobs=True)
    assert words.take({"text": "1 2 3 4"}) == [11, 12, 13]
    assert letters.take({"text": "12"}) == []
    assert [token for token, _ in words.whole(None)] == [11, 12, 13, 14]
    assert [token for token, _ in letters.whole(None)] == [11, 12]


@given(st.integers(1, 20), st.sets(st.integers(1, 20)), st.integers(0, 20), st.booleans(), st.booleans())
def test_a_choice_does_not_depend_on_its_pieces(
    size: int, cuts: set[int], most: int, ends_apart: bool, has_usage: bool
) -> None:
    told: Told = []
    streamed = StreamedChoice(SentIds(with_logprobs=True), heard=hearing(told), most=most)
    ids = list(range(40, 40 + size))
    ends = sorted(cut for cut in cuts | {size} if cut <= size)
    for a, b in zip([0, *ends], ends, strict=False):
        piece = {"text": "x" * (b - a), "token_ids": ids[a:b], "finish_reason": None}
        piece["logprobs"] = {"token_logprobs": [-float(token) for token in ids[a:b]]}
        if b == size and not ends_apart:
            piece["finish_reason"] = "length"
        streamed.add({"choices": [piece]})
    if ends_apart:
        streamed.add({"choices": [{"text": "", "finish_reason": "length"}]})
    if has_usage:
        streamed.add({"choices": [], "usage": {"completion_tokens": size}})
    assert streamed.scored() == [(token, -float(token)) for token in ids]
    assert (streamed.finish, streamed.counted) == ("length", size if has_usage else None)
    assert told == list(enumerate(ids))[:most]
