"""A frozen policy behind /v1/completions: vLLM's dialect, and one that speaks text alone."""

import asyncio
import json
import math
from functools import partial
from typing import Any

import pytest

from rocstar.engine.inference.base import Generation, InferenceError, Sampling, StopReason
from rocstar.engine.inference.openai import OpenAIEndpoint
from rocstar.engine.inference.openai_formats import EndpointFormat
from tests.fakes import asking
from tests.fakes.openai_endpoint import STANDARD_FIELDS, STOP, TOKENIZER, VOCAB, Endpoint

from ...patience import PATIENCE_S

ask = partial(asking.ask, max_new_tokens=4, stop_ids=frozenset({13}), sampling=Sampling(temperature=1.0), seed=1 << 63)


def opened(url: str, **options: Any) -> OpenAIEndpoint:
    return OpenAIEndpoint(url, model="m", vocab_size=VOCAB, **options)


async def test_ids_and_logprobs_as_sampled() -> None:
    async with Endpoint(with_ids=True).serve() as url, opened(url) as endpoint:
        got = await ask(endpoint, [3, 11])
        assert got == Generation(
            ids=(12, 13),
            logprobs=(-0.512, -0.513),
            version_spans=((0, 2, 0),),
            finish=StopReason.stop,
            cached_tokens=0,
        )
        assert (await ask(endpoint, [20])).finish is StopReason.length


async def test_logprobs_of_another_temperature_are_never_passed_on() -> None:
    async with Endpoint(with_ids=True).serve() as url:
        async with opened(url) as endpoint:
            got = await ask(endpoint, [3], sampling=Sampling(temperature=0.7))
            assert len(got.ids) == 4 and all(math.isnan(x) for x in got.logprobs)
            assert (await ask(endpoint, [3])).logprobs == (-0.504, -0.505, -0.506, -0.507)
            assert endpoint.version == 0 and endpoint.busy_s > 0


async def test_text_alone_has_no_logprobs() -> None:
    server = Endpoint(with_ids=False)
    async with server.serve() as url:
        with pytest.raises(InferenceError, match="tokenizer"):
            await opened(url).__aenter__()
        async with opened(url, codec=TOKENIZER) as endpoint:
            prompt = TOKENIZER.encode("2+2?")
            got = await ask(endpoint, prompt, max_new_tokens=9, stop_ids=frozenset({STOP}))
            assert got.ids == (*TOKENIZER.encode("four"), STOP) and got.finish is StopReason.stop
            assert all(math.isnan(x) for x in got.logprobs)
            assert server.requests[-1]["prompt"] == "2+2?"
            assert server.requests[-1]["stop"] == ["<|im_end|>"]


@pytest.mark.parametrize(("room", "ends"), [(5, True), (4, False), (3, False)])
async def test_of_a_text_of_too_many_tokens_no_end_is_made_up(room: int, ends: bool) -> None:
    """The server's own tokens were fewer; the stop token is one of ours."""
    async with Endpoint(with_ids=False).serve() as url, opened(url, codec=TOKENIZER) as endpoint:
        got = await ask(endpoint, [3], max_new_tokens=room, stop_ids=frozenset({STOP}))
    whole = (*TOKENIZER.encode("four"), STOP)
    assert got.ids == whole[:room] and (got.finish is StopReason.stop) is ends


@pytest.mark.parametrize(("status", "kind", "retryable"), [(500, "server_error", True), (400, "bad_request", False)])
async def test_statuses(status: int, kind: str, retryable: bool) -> None:
    server = Endpoint(with_ids=True)
    async with server.serve() as url, opened(url) as endpoint:
        server.status = status
        with pytest.raises(InferenceError) as caught:
            await ask(endpoint, [3])
        assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


@pytest.mark.parametrize(
    "change",
    [{"token_ids": []}, {"logprobs": None}, {"logprobs": {"token_logprobs": [-1.0]}}, {"token_ids": [1, 2, 3, 4, 5]}],
)
async def test_an_answer_that_does_not_add_up_is_refused(change: dict[str, Any]) -> None:
    server = Endpoint(with_ids=True)
    async with server.serve() as url, opened(url) as endpoint:
        server.change = change
        with pytest.raises(InferenceError, match="bad_reply"):
            await ask(endpoint, [30])


@pytest.mark.parametrize(
    ("spells", "logprobs", "reason"),
    [
        (False, {"token_logprobs": ["high"]}, "'high'"),
        (False, ["high"], "no attribute 'get'"),
        (True, {"content": [{"id": 3, "bytes": [65], "logprob": "high"}]}, "'high'"),
    ],
)
async def test_malformed_logprob_of_the_first_answer_refuses_the_endpoint(
    spells: bool, logprobs: Any, reason: str
) -> None:
    server = Endpoint(with_ids=not spells, spells=spells)
    server.change = {"logprobs": logprobs}
    async with server.serve() as url:
        with pytest.raises(InferenceError, match=f"unfit: {url} answers with malformed.*{reason}"):
            await opened(url, codec=TOKENIZER).__aenter__()


async def test_abort_deadline_and_frozen_weights(until: Any) -> None:
    server = Endpoint(with_ids=True)
    async with server.serve() as url, opened(url) as endpoint:
        server.release.clear()
        running = asyncio.create_task(ask(endpoint, [3]))
        await until(lambda: len(server.requests) == 2)
        assert endpoint.load().running == 1 and endpoint.load().used == 1
        await endpoint.abort("s0/t/0")
        got = await running
        assert (got.ids, got.finish, got.version_spans) == ((), StopReason.aborted, ())
        with pytest.raises(TimeoutError):
            await ask(endpoint, [3], deadline=asyncio.get_running_loop().time() + 0.02)
        with pytest.raises(InferenceError, match="frozen"):
            await endpoint.publish(1)
        with pytest.raises(InferenceError, match="bad_token"):
            await ask(endpoint, [VOCAB])
        server.release.set()
        assert (await ask(endpoint, [11])).ids == (12, 13)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(InferenceError, match="replica_lost"):
            await opened("http://127.0.0.1:1/v1").__aenter__()


async def test_the_whole_distribution_is_asked_for_by_name() -> None:
    """A server has settings of its own for whatever a request leaves out."""
    for server in (Endpoint(with_ids=True), Endpoint(with_ids=False, spells=True), Endpoint(with_ids=False)):
        async with server.serve() as url, opened(url, codec=TOKENIZER) as endpoint:
            await ask(endpoint, [3], stop_ids=frozenset({STOP}), max_new_tokens=9)
            asked = server.requests[-1]
            assert (asked["top_p"], asked["top_k"], asked["min_p"]) == (1.0, -1, 0.0)
            assert asked["repetition_penalty"] == asked["repeat_penalty"] == 1.0
            assert asked["presence_penalty"] == asked["frequency_penalty"] == 0.0


async def test_what_takes_no_other_fields_than_openais_is_asked_without(caplog: pytest.LogCaptureFixture) -> None:
    server = Endpoint(with_ids=False)
    server.strict = True
    async with server.serve() as url, opened(url, codec=TOKENIZER) as endpoint:
        got = await ask(endpoint, TOKENIZER.encode("2+2?"), stop_ids=frozenset({STOP}), max_new_tokens=9)
        assert got.ids == (*TOKENIZER.encode("four"), STOP)
        assert server.requests[-1].keys() <= STANDARD_FIELDS
        assert "takes no top_k" in caplog.text
        server.status = 404
        with pytest.raises(InferenceError, match="404"):
            await opened(url, codec=TOKENIZER).__aenter__()


async def test_llamacpps_ids_are_those_that_were_sampled() -> None:
    """Its log-probs have ids: nothing is encoded again, and what was sampled at T = 1 can be learned from."""
    server = Endpoint(with_ids=False, spells=True)
    async with server.serve() as url, opened(url, codec=TOKENIZER) as endpoint:
        assert endpoint.form is EndpointFormat.SPELLED_IDS and endpoint.gives_logprobs
        prompt, ids = TOKENIZER.encode("2+2?"), (*TOKENIZER.encode("four"), STOP)
        got = await ask(endpoint, prompt, max_new_tokens=9, stop_ids=frozenset({STOP}))
        assert (got.ids, got.finish) == (ids, StopReason.stop)
        assert got.logprobs == tuple(-0.5 - token / 1000 for token in ids)
        assert server.requests[-1]["prompt"] == prompt
        sampling = Sampling(temperature=0.7)
        got = await ask(endpoint, prompt, max_new_tokens=3, stop_ids=frozenset({STOP}), sampling=sampling)
        assert (got.ids, got.finish) == (ids[:3], StopReason.length)
        assert all(math.isnan(logprob) for logprob in got.logprobs)


@pytest.mark.parametrize("is_heard", [False, True])
@pytest.mark.parametrize("dialect", [{"with_ids": True}, {"with_ids": False, "spells": True}, {"with_ids": False}])
async def test_what_the_servers_room_cuts_is_no_end_of_the_policys(dialect: dict[str, bool], is_heard: bool) -> None:
    """It says "length", as if the policy had used up what it was asked for; of text its usage tells."""
    server = Endpoint(**dialect, room=3)
    async with server.serve() as url, opened(url, codec=TOKENIZER) as endpoint:
        if is_heard:
            endpoint.on_tokens("s0/t/0", lambda place, token, _: None)
        with pytest.raises(InferenceError, match=r"too_long.* ended at 3 of 4") as caught:
            await ask(endpoint, [30], stop_ids=frozenset({STOP}))
        assert not caught.value.retryable and bool(server.requests[-1].get("stream")) is is_heard


async def test_what_does_not_count_its_streams_is_heard_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    server = Endpoint(with_ids=False)
    server.counts_streams = False
    told: list[int] = []
    async with server.serve() as url, opened(url, codec=TOKENIZER) as endpoint:
        endpoint.on_tokens("s0/t/0", lambda place, token, _: told.append(token))
        server.text = "one two three"
        got = await ask(endpoint, [30], stop_ids=frozenset({STOP}), max_new_tokens=30)
        assert got.ids == (*TOKENIZER.encode(server.text), STOP) and told
        await ask(endpoint, [30], stop_ids=frozenset({STOP}), max_new_tokens=30)
    assert ["stream_options" in body for body in server.requests[-4:]] == [True, False, False, False]
    assert "does not count streamed tokens" in caplog.text


async def test_who_listens_first_looks_for_all() -> None:
    server = Endpoint(with_ids=True)
    async with server.serve() as url, opened(url) as endpoint:
        names = [f"s0/t/{k}" for k in range(4)]
        for name in names:
            endpoint.on_tokens(name, lambda place, token, _: None)
        await asyncio.gather(*(ask(endpoint, [11], name) for name in names))
    assert len(server.requests) == 1 + 1 + 4


@pytest.mark.parametrize("reason", ["abort", "error", None])
async def test_an_end_that_is_the_servers_is_its_failure(reason: str | None) -> None:
    for server in (Endpoint(with_ids=False), Endpoint(with_ids=True)):
        async with server.serve() as url, opened(url, codec=TOKENIZER) as endpoint:
            server.change = {"finish_reason": reason}
            with pytest.raises(InferenceError, match="bad_reply") as caught:
                await ask(endpoint, [11], stop_ids=frozenset({STOP}))
            assert caught.value.retryable


async def test_a_connection_that_was_kept_and_closed_is_no_failure() -> None:
    """The server closes it without a word as it is used again; what was asked is asked once more."""
    answer = json.dumps({"choices": [{"text": "", "token_ids": [5], "finish_reason": "length"}]}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer)
    asked: list[int] = []

    ended = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(2):  # the second request of a connection is its end
            try:
                asking = (await reader.readuntil(b"\r\n\r\n")).lower()
            except asyncio.IncompleteReadError:  # of the new one the client ends it
                break
            await reader.readexactly(int(asking.split(b"content-length: ")[1].split()[0]))
            asked.append(number)
            if number == 0:
                writer.write(head + answer)
        writer.close()
        ended.release()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with opened(url) as endpoint:
            assert (await ask(endpoint, [3], max_new_tokens=1)).ids == (5,)
            assert asked == [0, 1, 0], "the probe, the same connection again, and a new one"
        for _ in range(2):
            await ended.acquire()


@pytest.mark.parametrize("is_heard", [False, True])
async def test_it_goes_on_behind_the_models_own_end_of_text(is_heard: bool) -> None:
    """The server stops there, as at a token that was asked for: no end of a turn, unless it was."""
    server = Endpoint(with_ids=True)
    server.own_end = 15
    told: list[tuple[int, int]] = []
    async with server.serve() as url, opened(url) as endpoint:
        if is_heard:
            endpoint.on_tokens("s0/t/0", lambda place, token, _: told.append((place, token)))
        got = await ask(endpoint, [12], stop_ids=frozenset({17}), max_new_tokens=9)
        assert (got.ids, got.finish) == ((13, 14, 15, 16, 17), StopReason.stop)
        assert got.logprobs == tuple(-0.5 - token / 1000 for token in got.ids)
        assert server.requests[-1]["prompt"] == [12, 13, 14, 15]
        assert told == (list(enumerate(got.ids)) if is_heard else [])
        got = await ask(endpoint, [12], stop_ids=frozenset({17}), max_new_tokens=3)
        assert (got.ids, got.finish) == ((13, 14, 15), StopReason.length)
        assert "ignore_eos" not in server.requests[-1], "SGLang takes it for no stop token at all"
