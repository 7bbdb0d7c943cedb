"""SGLangEngine against the fake server: what it sends, what it believes, and how it fails."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.inference.base import InferenceError, StopReason
from rocstar.engine.inference.sglang.api import Api, _json
from rocstar.engine.inference.sglang.engine import SGLangEngine
from rocstar.engine.inference.sglang.requests import LiveRequest
from tests.fakes.asking import ask
from tests.fakes.sglang.fake_model import EOS, VOCAB
from tests.fakes.sglang.fake_server import FakeServer

POWERS = [sign << bits for sign in (-1, 1) for bits in (31, 32, 64)]
BAD_IDS = [-VOCAB, -1, VOCAB, *(power + k for power in POWERS for k in (-1, 0, 5))]
"""Ids outside the vocabulary, each of which kills a server. Some are a good id in 32 bits."""


def count_up(prompt: tuple[int, ...], written: int) -> int:
    return (prompt[-1] + written + 1) % VOCAB


async def test_stop_token_is_included_with_its_logprob(sglang: Any) -> None:
    async with sglang(script=count_up) as (engine, _):
        got = await ask(engine, [3, 10], stop_ids=frozenset({13, 99}))
        assert (got.ids, got.finish) == ((11, 12, 13), StopReason.stop)
        assert got.version_spans == ((0, 3, 0),) and len(got.logprobs) == 3
        cut = await ask(engine, [3, 10], stop_ids=frozenset({14}), max_new_tokens=3)
        assert (cut.ids, cut.finish) == ((11, 12, 13), StopReason.length)
        assert cut.cached_tokens == 1


async def test_the_models_own_end_of_text_is_no_stop_unless_asked_for(sglang: Any) -> None:
    async with sglang(script=count_up) as (engine, server):
        got = await ask(engine, [EOS - 2], max_new_tokens=4)
        assert got.ids[:2] == (EOS - 1, EOS) and len(got.ids) == 4 and got.finish is StopReason.length
        assert len(got.logprobs) == 4 and got.version_spans == ((0, 4, 0),)
        before = server.requests
        at_limit = await ask(engine, [EOS - 2], max_new_tokens=2)
        assert (at_limit.ids[-1], at_limit.finish) == (EOS, StopReason.length)
        assert server.requests == before + 1
        asked = await ask(engine, [EOS - 2], stop_ids=frozenset({EOS}))
        assert (asked.ids, asked.finish) == ((EOS - 1, EOS), StopReason.stop)


@pytest.mark.parametrize(
    ("ids", "changes", "kind"),
    [
        ([], {}, "bad_request"),
        ([1], {"max_new_tokens": 0}, "bad_request"),
        ([1], {"seed": -1}, "bad_request"),
        ([1], {"seed": 1 << 64}, "bad_request"),
        ([1] * 200, {"max_new_tokens": 55}, "too_long"),
        *(([5] * at + [bad] + [5] * (99 - at), {}, "bad_token") for bad in BAD_IDS for at in (0, 50, 99)),
    ],
)
async def test_bad_requests_are_never_sent(sglang: Any, ids: Any, changes: Any, kind: str) -> None:
    async with sglang(capacity=256) as (engine, server):
        before = server.requests
        with pytest.raises(InferenceError) as caught:
            await ask(engine, ids, **changes)
        assert (caught.value.kind, caught.value.retryable) == (kind, False)
        assert server.requests == before
        assert len((await ask(engine, [1] * 200, max_new_tokens=54)).ids) == 54


async def test_the_servers_limits_are_the_ones_refused_here(sglang: Any) -> None:
    """What is refused here is what the server would refuse or clip: one token less goes through whole."""
    async with sglang(capacity=256) as (engine, _):
        body = {"input_ids": [1] * 200, "sampling_params": {"max_new_tokens": 55}, "return_logprob": True}
        reply = await engine.api.generate(body)
        assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 54}
        for length, path in ((251, "exceeds the maximum allowed"), (5000, "longer than the model")):
            with pytest.raises(InferenceError, match=path) as caught:
                await engine.api.generate({"input_ids": [1] * length, "sampling_params": {"max_new_tokens": 1}})
            assert (caught.value.kind, caught.value.retryable) == ("too_long", False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"output_ids": [4, 6]}, "other tokens"),
        ({"output_ids": [4, 5, 6]}, "log-probs"),
        ({"output_ids": "ab"}, "ValueError"),
        ({"weight_versions": [{"version": "9", "start": 0, "end": 2}]}, "KeyError"),
        ({"weight_versions": [{"version": "0", "start": 0, "end": 1}]}, "do not cover"),
        ({"finish_reason": {"type": "magic"}}, "magic"),
        ({"finish_reason": None}, "TypeError"),
        ({"output_token_logprobs": [[None, 4, None], [-2.0, 5, None]]}, "TypeError"),
    ],
)
def test_an_answer_that_does_not_add_up_is_refused(change: dict[str, Any], why: str) -> None:
    meta: dict[str, Any] = {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-1.0, 4, None], [-2.0, 5, None]],
        "weight_versions": [{"version": "0", "start": 0, "end": 2}],
    }
    reply: dict[str, Any] = {"output_ids": change.pop("output_ids", [4, 5]), "meta_info": meta | change}
    live = LiveRequest(rid="r")
    with pytest.raises(InferenceError, match=why) as caught:
        live.take(reply, asked=2, versions={"0": 0})
    assert (caught.value.kind, caught.value.retryable, live.written.ids) == ("bad_reply", True, [])


@pytest.mark.parametrize("is_heard", [False, True])
async def test_abort_answers_with_what_there_is_and_spares_the_neighbours(
    sglang: Any, until: Any, is_heard: bool
) -> None:
    """The server aborts by prefix: s0/t/1 must not end s0/t/12."""
    async with sglang(step_s=0.001) as (engine, server):
        heard: list[tuple[int, int]] = []
        if is_heard:
            engine.on_tokens("s0/t/1", lambda place, token, _: heard.append((place, token)))
        running = [asyncio.create_task(ask(engine, [5, k], n, 60)) for k, n in enumerate(("s0/t/1", "s0/t/12"))]
        await until(lambda: server.scheduler.kv.held > 4)
        await engine.abort("s0/t/1")
        aborted, whole = [await task for task in running]
        assert aborted.finish is StopReason.aborted and 0 < len(aborted.ids) < 60
        assert len(aborted.logprobs) == len(aborted.ids)
        assert heard == (list(enumerate(aborted.ids)) if is_heard else [])
        assert (whole.finish, len(whole.ids)) == (StopReason.length, 60)
        rest = await ask(engine, [5, 0, *aborted.ids], max_new_tokens=60 - len(aborted.ids))
        alone = await ask(engine, [5, 0], max_new_tokens=60)
        assert (*aborted.ids, *rest.ids) == alone.ids


async def test_no_request_id_begins_another(sglang: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late abort of a trajectory's first request must not end its twelfth."""
    async with sglang() as (engine, server):
        sent: list[str] = []
        submit = server.scheduler.submit
        monkeypatch.setattr(server.scheduler, "submit", lambda r: (sent.append(r.rid), submit(r)))
        for _ in range(12):
            await ask(engine, [1], max_new_tokens=1)
        await ask(engine, [1], "s0/t/01", max_new_tokens=1)
        assert len(sent) == 13
        assert not [(a, b) for a in sent for b in sent if a != b and b.startswith(a)]


async def test_second_request_of_a_running_trajectory_is_refused(sglang: Any, until: Any) -> None:
    async with sglang(step_s=0.001) as (engine, server):
        first = asyncio.create_task(ask(engine, [1], max_new_tokens=300))
        await until(lambda: server.scheduler.running)
        with pytest.raises(InferenceError, match="bad_request"):
            await ask(engine, [1])
        engine.release("s0/t/0")
        assert (await first).finish is StopReason.aborted


async def test_what_its_caller_gives_up_is_aborted_on_the_server(sglang: Any, until: Any) -> None:
    async with sglang(step_s=0.001) as (engine, server):
        with pytest.raises(TimeoutError):
            await ask(engine, [1], max_new_tokens=2000, deadline=asyncio.get_running_loop().time() + 0.05)
        await until(lambda: server.scheduler.idle)
        cancelled = asyncio.create_task(ask(engine, [1], max_new_tokens=2000))
        await until(lambda: server.scheduler.running)
        cancelled.cancel()
        await until(lambda: server.scheduler.idle)
        assert engine.load().running == 0
        assert len((await ask(engine, [1])).ids) == 8, "the same trajectory may ask again at once"


async def test_load_counts_requests_now_and_tokens_at_the_last_look(sglang: Any, until: Any) -> None:
    async with sglang(capacity=100, step_s=0.005) as (engine, _):
        running = [asyncio.create_task(ask(engine, [k] * 40, f"s0/t/{k}", max_new_tokens=30)) for k in range(3)]
        await until(lambda: engine.load().waiting == 1 and engine.load().used > 80)
        load = engine.load()
        assert (load.total, load.running) == (100, 2)
        assert [len(got.ids) for got in await asyncio.gather(*running)] == [30] * 3
        await until(lambda: engine.load().used == 0)


async def test_a_server_with_raw_logprobs_is_refused(checkpoints: dict[str, Path]) -> None:
    async with FakeServer(checkpoints["a"]) as server:
        server.faults.raw_logprobs = True
        with pytest.raises(InferenceError, match="SGLANG_RETURN_ORIGINAL_LOGPROB") as caught:
            async with SGLangEngine(server.url, vocab_size=VOCAB):
                pass
        assert (caught.value.kind, caught.value.retryable) == ("unfit", False)


async def test_error_500_fails_the_request_and_no_other(sglang: Any) -> None:
    async with sglang() as (engine, server):
        server.faults.error_500 = 1
        with pytest.raises(InferenceError, match="500") as caught:
            await ask(engine, [1])
        assert (caught.value.kind, caught.value.retryable) == ("server_error", True)
        assert len((await ask(engine, [1])).ids) == 8


async def test_a_killed_server_fails_its_requests_at_once(sglang: Any, until: Any) -> None:
    """Streamed ones too."""
    async with sglang(step_s=0.001) as (engine, server):
        engine.on_tokens("s0/t/0", lambda place, token, _: None)
        running = [asyncio.create_task(ask(engine, [k], f"s0/t/{k}", 900)) for k in range(4)]
        await until(lambda: len(server.scheduler.running) == 4)
        await server.kill()
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(outcome, InferenceError)
            assert (outcome.kind, outcome.retryable) == ("replica_lost", True)
        await until(lambda: engine.broken is not None)
        with pytest.raises(InferenceError, match="replica_lost"):
            await ask(engine, [1])


@pytest.mark.parametrize("fault", ["hang", "mute"])
async def test_a_hung_server_fails_its_requests_within_the_timeout(sglang: Any, until: Any, fault: str) -> None:
    async with sglang(step_s=0.001, engine_hang_timeout_s=0.1, engine_control_timeout_s=0.2) as (engine, server):
        running = asyncio.create_task(ask(engine, [1], max_new_tokens=900))
        await until(lambda: server.scheduler.running)
        setattr(server.faults, fault, True)
        with pytest.raises(InferenceError) as caught:
            await running
        assert (caught.value.kind, caught.value.retryable) == ("replica_hung", True)
        with pytest.raises(InferenceError, match="replica_hung"):
            await ask(engine, [1])
        server.faults.hang = server.faults.mute = False


async def test_a_pause_is_no_hang(sglang: Any, until: Any) -> None:
    """A paused scheduler's snapshot stands still too; requests wait through it."""
    async with sglang(step_s=0.001, engine_hang_timeout_s=0.05) as (engine, server):
        running = asyncio.create_task(ask(engine, [1], max_new_tokens=60))
        await until(lambda: server.scheduler.running)
        engine.paused = True
        await engine.api.post("/pause_generation", {"mode": "retract"})
        reports = [engine._loads]

        def num_reports() -> int:
            if engine._loads is not reports[-1]:
                reports.append(engine._loads)
            return len(reports)

        await until(lambda: num_reports() > 6)
        assert engine.broken is None and engine.load().waiting == 1
        await engine.api.post("/continue_generation", {})
        engine.paused = False
        assert (await running).finish is StopReason.length


async def test_an_abort_in_a_pause_is_not_lost(sglang: Any, until: Any) -> None:
    """What reaches the server in a pause waits where no abort finds it; what we hold back ends at once."""
    async with sglang(step_s=0.001, script=lambda prompt, written: 7) as (engine, server):
        await engine.api.post("/pause_generation", {"mode": "retract"})
        sent = asyncio.create_task(ask(engine, [1], "s0/t/1", max_new_tokens=900))
        before = server.requests
        await until(lambda: server.requests > before)
        engine.paused = True
        held = asyncio.create_task(ask(engine, [2], "s0/t/2", max_new_tokens=900))
        await asyncio.sleep(0)
        await engine.abort("s0/t/1")
        await engine.abort("s0/t/2")
        await engine.api.post("/continue_generation", {})
        engine.paused = False
        assert (await held).ids == () and server.requests == before + 1
        got = await sent
        assert got.finish is StopReason.aborted and len(got.ids) < 900


async def test_control_calls_pass_a_full_house(sglang: Any, until: Any) -> None:
    """Requests that wait through a pause hold their connections; continue must still get one."""
    async with sglang(engine_max_requests=3, engine_control_timeout_s=2.0) as (engine, server):
        server.faults.hang = True
        running = [asyncio.create_task(ask(engine, [k], f"s0/t/{k}", max_new_tokens=40)) for k in range(9)]
        await until(lambda: len(server.scheduler.waiting) == 3)
        await engine.api.post("/pause_generation", {"mode": "retract"})
        await engine.api.post("/continue_generation", {})
        server.faults.hang = False
        assert [len(got.ids) for got in await asyncio.gather(*running)] == [40] * 9


async def test_every_status_is_checked(sglang: Any) -> None:
    async with sglang() as (engine, _):
        with pytest.raises(InferenceError, match="404"):
            await engine.api.post("/no_such_route", {})
        with pytest.raises(InferenceError, match="begin_weight_update"):
            await engine.api.post("/end_weight_update", {})
    async with Api("http://127.0.0.1:1") as api:
        assert not await api.answers()
        with pytest.raises(InferenceError, match="replica_lost"):
            await api.loads()


@pytest.mark.parametrize("content", [b'{"text": "\xff"}', b'[{"logprob": NaN}]', b"<html>", b""])
def test_an_answer_that_is_no_json_is_bad_and_may_be_asked_for_again(content: bytes) -> None:
    with pytest.raises(InferenceError, match="/generate answered") as caught:
        _json(content, "/generate")
    assert caught.value.kind == "bad_reply" and caught.value.retryable
