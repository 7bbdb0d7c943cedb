"""Weights into fake servers: no token lost, no wrong tensor believed, and what happens when it fails."""

import asyncio
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from rocstar.engine.inference.base import InferenceError, StopReason
from rocstar.engine.inference.sglang import broadcast as module
from rocstar.engine.inference.sglang.broadcast import BroadcastGroup, buckets
from rocstar.engine.inference.sglang.checksums import (
    PassingChecksums,
    check_layout,
    expected_checksums,
    matching_dtype,
)
from rocstar.engine.inference.sglang.engine import SGLangEngine
from rocstar.engine.inference.sglang.sender import WeightSender
from rocstar.engine.inference.weight_stream import Bucket, WeightStream, in_buckets
from rocstar.engine.inference.weights import DiskWeights, LiveWeights
from tests.fakes.asking import ask
from tests.fakes.sglang import fake_weights
from tests.fakes.sglang.fake_model import VOCAB
from tests.fakes.sglang.fake_server import FakeServer

from ...patience import PATIENCE_S

NUM_IN_FLIGHT = 200


@pytest.fixture
async def pair(checkpoints: dict[str, Path]) -> Any:
    """(servers, engines), two of each, serving `a` as version 0."""
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(FakeServer(checkpoints["a"], capacity=1 << 16, step_s=0.0005))
            for _ in range(2)
        ]
        engines = [
            await stack.enter_async_context(
                SGLangEngine(s.url, vocab_size=VOCAB, model=DiskWeights(checkpoints["a"]), watch_every_s=0.05)
            )
            for s in servers
        ]
        yield servers, engines


async def test_a_publish_with_requests_in_flight_loses_no_token(pair: Any, checkpoints: Any, until: Any) -> None:
    """Each token is what the weights it is labelled with give for the ids before it."""
    (server, other), (engine, fresh) = pair
    server.faults.hang = True
    running = [asyncio.create_task(ask(engine, [5, 6, k], f"s0/t/{k}", 40)) for k in range(NUM_IN_FLIGHT)]
    await until(lambda: len(server.scheduler.waiting) == NUM_IN_FLIGHT)
    server.faults.hang = False
    await until(lambda: server.scheduler.kv.held > 3 * NUM_IN_FLIGHT)
    await engine.publish(3, DiskWeights(checkpoints["b"]))
    got = await asyncio.gather(*running)
    assert server.scheduler.num_retracted == 0 and engine.version == 3
    assert [(len(g.ids), g.finish) for g in got] == [(40, StopReason.length)] * NUM_IN_FLIGHT
    assert [[v for _, _, v in g.version_spans] for g in got] == [[0, 3]] * NUM_IN_FLIGHT
    for k, g in enumerate(got[:8]):
        (_, cut, _), (again, end, _) = g.version_spans
        assert (again, end) == (cut, 40)
        before = await ask(fresh, [5, 6, k], f"s1/t/{k}", cut)
        assert (before.ids, before.logprobs) == (g.ids[:cut], g.logprobs[:cut])
        after = await ask(engine, [5, 6, k, *g.ids[:cut]], f"s1/t/{k}", 40 - cut)
        assert (after.ids, after.logprobs) == (g.ids[cut:], g.logprobs[cut:])
    assert other.scheduler.label == "0"


async def test_versions_only_grow_and_old_kv_goes(pair: Any, checkpoints: Any) -> None:
    (server, _), (engine, _) = pair
    await ask(engine, [5] * 20, "s0/t/0", 4)
    assert (await ask(engine, [5] * 20, "s0/t/0", 4)).cached_tokens == 19
    await engine.publish(2, DiskWeights(checkpoints["b"]))
    again = await ask(engine, [5] * 20, "s0/t/0", 4)
    assert (again.cached_tokens, again.version_spans) == (0, ((0, 4, 2),)), "KV of old weights was kept"
    for version in (2, 1, -1, 1 << 60):
        with pytest.raises(ValueError, match="follow"):
            await engine.publish(version, DiskWeights(checkpoints["a"]))
    with pytest.raises(ValueError, match="source"):
        await engine.publish(3)
    assert (engine.version, server.scheduler.label) == (2, "2")


def spoiled(checkpoints: dict[str, Path], folder: Path, change: Any) -> DiskWeights:
    tensors = load_file(checkpoints["b"] / "model.safetensors")
    change(tensors)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return DiskWeights(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.pop("model.norm.weight"), "missing, 'model.norm.weight'"),
        (lambda t: t.update({"model.norm.bias": t["model.norm.weight"].clone()}), "no tensor 'model.norm.bias'"),
        (lambda t: t.update({"model.norm.weight": t["model.norm.weight"][:4].clone()}), "has shape"),
        (lambda t: t.clear(), "no safetensors"),
    ],
)
async def test_a_source_that_is_not_the_models_is_never_sent(
    pair: Any, checkpoints: Any, tmp_path: Path, change: Any, why: str
) -> None:
    """A wrong shape kills the server; a missing tensor keeps its old value behind a 200."""
    (server, _), (engine, _) = pair
    with pytest.raises(ValueError, match=why):
        await engine.publish(1, spoiled(checkpoints, tmp_path / "bad", change))
    assert (server.scheduler.label, server.scheduler.paused, engine.broken) == ("0", False, None)
    await engine.publish(1, DiskWeights(checkpoints["b"]))


@pytest.mark.parametrize("fault", ["garbage", "forget"])
async def test_a_200_with_wrong_weights_is_caught_and_its_requests_keep_their_tokens(
    pair: Any, checkpoints: Any, until: Any, fault: str
) -> None:
    (server, _), (engine, _) = pair
    running = [asyncio.create_task(ask(engine, [5, k], f"s0/t/{k}", 2000)) for k in range(3)]
    await until(lambda: server.scheduler.kv.held > 3 * 60)
    setattr(server.faults, fault, True)
    with pytest.raises(InferenceError, match="not version 1's") as caught:
        await engine.publish(1, DiskWeights(checkpoints["b"]))
    assert (caught.value.kind, caught.value.retryable) == ("wrong_weights", True)
    for got in await asyncio.gather(*running):
        assert got.finish is StopReason.aborted and len(got.ids) >= 50
        assert [version for _, _, version in got.version_spans] == [0]
    with pytest.raises(InferenceError, match="wrong_weights"):
        await ask(engine, [5], "s0/t/9", 4)
    setattr(server.faults, fault, False)
    await engine.publish(1, DiskWeights(checkpoints["b"]))
    assert (await ask(engine, [5], "s0/t/9", 4)).version_spans == ((0, 4, 1),)


async def test_without_the_models_files_a_publish_must_change_something(checkpoints: dict[str, Path]) -> None:
    async with FakeServer(checkpoints["a"]) as server:
        async with SGLangEngine(server.url, vocab_size=VOCAB) as engine:
            server.faults.forget = True
            with pytest.raises(InferenceError, match="changed no tensor"):
                await engine.publish(1, DiskWeights(checkpoints["b"]))
            server.faults.forget = False
            await engine.publish(1, DiskWeights(checkpoints["b"]))


async def test_one_dead_server_does_not_stop_the_others(pair: Any, checkpoints: Any) -> None:
    (dead, _), engines = pair
    await dead.kill()
    async with WeightSender(engines) as sender:
        first, second = await sender.send(1, DiskWeights(checkpoints["b"]))
    assert first is not None and first.kind == "replica_lost" and second is None
    assert [engine.version for engine in engines] == [0, 1]
    assert engines[0].broken is not None and engines[1].broken is None


async def test_a_publish_that_is_cancelled_leaves_nothing_half_served(pair: Any, checkpoints: Any, until: Any) -> None:
    (server, _), (engine, _) = pair
    server.faults.mute = True
    publishing = asyncio.create_task(engine.publish(1, DiskWeights(checkpoints["b"])))
    await until(lambda: engine.paused)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    server.faults.mute = False
    with pytest.raises(InferenceError, match="publish_broken_off"):
        await ask(engine, [5], "s0/t/0", 4)
    await engine.publish(1, DiskWeights(checkpoints["b"]))
    assert (await ask(engine, [5], "s0/t/0", 4)).version_spans == ((0, 4, 1),)


async def test_live_weights_go_by_disk_where_no_broadcast_is_to_be_had(pair: Any, checkpoints: Any) -> None:
    servers, engines = pair
    for server in servers:
        server.faults.refuse_broadcast = True
    live = LiveWeights(load_file(checkpoints["b"] / "model.safetensors"))
    async with WeightSender(engines, backend="gloo", timeout_s=0.5) as sender:
        assert await sender.send(1, live) == [None, None]
    assert [server.scheduler.label for server in servers] == ["1", "1"]


def test_checksums_of_a_source(checkpoints: dict[str, Path]) -> None:
    source = DiskWeights(checkpoints["a"])
    names = ["model.layers.0.self_attn.qkv_proj.weight", "lm_head.weight"]
    found = expected_checksums(source, names, "float32")
    assert found is not None and matching_dtype(source, found) == "float32"
    other = expected_checksums(source, names, "bfloat16")
    assert other is not None and matching_dtype(source, other) == "bfloat16" and other != found
    assert expected_checksums(source, ["model.layers.0.mlp.quantised"], "float32") is None
    assert matching_dtype(source, {**found, "lm_head.weight": "0" * 16}) is None
    live = LiveWeights(load_file(checkpoints["a"] / "model.safetensors"))
    assert expected_checksums(live, names, "float32") == found


def test_a_tied_head_may_be_there_or_not() -> None:
    tied = {"model.embed_tokens.weight": (4, 2)}
    check_layout(tied, {**tied, "lm_head.weight": (4, 2)})
    check_layout({**tied, "lm_head.weight": (4, 2)}, tied)


async def test_buckets_hold_every_tensor_once_in_order(checkpoints: dict[str, Path]) -> None:
    live = LiveWeights(load_file(checkpoints["a"] / "model.safetensors"))
    largest = max(tensor.nbytes for tensor in load_file(checkpoints["a"] / "model.safetensors").values())
    made = [bucket async for bucket in buckets(live, 64_000)]
    assert [name for bucket in made for name, _ in bucket] == list(live.shapes())
    assert len(made) > 3 and largest > 64_000
    for bucket in made:
        assert len(bucket) == 1 or sum(tensor.nbytes for _, tensor in bucket) <= 64_000
    halves = LiveWeights(load_file(checkpoints["a"] / "model.safetensors"), dtype="bfloat16")
    assert halves.sizes() == {name: halves.tensor(name).nbytes for name in halves.shapes()}


@given(order=st.permutations(range(4)))
def test_checksums_of_what_passes_by_in_any_order(order: list[int]) -> None:
    names = [f"model.layers.0.self_attn.{k}.weight" for k in ("q_proj", "k_proj", "v_proj", "o_proj")]
    tensors = {name: torch.full((k + 1, 3), float(k)) for k, name in enumerate(names)}
    served = ["model.layers.0.self_attn.qkv_proj.weight", names[3]]
    passing = PassingChecksums(LiveWeights(tensors).shapes(), served, "float32")
    assert set(passing.found().values()) == {""}  # type: ignore[union-attr]
    for k in order:
        passing.add(names[k], tensors[names[k]])
    fused = torch.cat([tensors[name] for name in names[:3]])
    whole = expected_checksums(LiveWeights({"a": fused, "b": tensors[names[3]]}), ["a", "b"], "float32")
    assert list(passing.found().values()) == list(whole.values())  # type: ignore[union-attr]


# ---- weights that pass by once ----


Groups = dict[str, list[Queue[Any]]]


@pytest.fixture
def collective(monkeypatch: pytest.MonkeyPatch) -> Groups:
    """A broadcast within this process, where torch knows but one member of a group: all the rest is as it is.
    The groups that were made. Between processes: test_sglang_replica.py."""
    members: Groups = {}

    def join(body: dict[str, Any]) -> Queue[Any]:
        own: Queue[Any] = Queue()
        members.setdefault(body["group_name"], []).append(own)
        return own

    def receive(own: Queue[Any], body: dict[str, Any]) -> dict[str, torch.Tensor]:
        bucket = own.get(timeout=PATIENCE_S)
        told = [(name, list(tensor.shape), str(tensor.dtype)) for name, tensor in bucket]
        names = zip(body["names"], body["shapes"], (f"torch.{d}" for d in body["dtypes"]), strict=True)
        assert told == list(names)
        return dict(bucket)

    def broadcast(self: BroadcastGroup, bucket: Bucket) -> None:
        for own in members[self._name]:
            own.put(bucket)

    monkeypatch.setattr(fake_weights, "_join", join)
    monkeypatch.setattr(fake_weights, "_receive", receive)
    monkeypatch.setattr(BroadcastGroup, "_join", lambda self, port: object())
    monkeypatch.setattr(BroadcastGroup, "_broadcast", broadcast)
    monkeypatch.setattr(module, "_destroy", lambda group: None)
    return members


def streamed(source: DiskWeights, kept: DiskWeights) -> tuple[WeightStream, Future[bool]]:
    """A stream that a thread fills from `source`, a few tensors at a time; and its outcome."""
    stream, outcome = WeightStream(source.shapes(), kept=kept), Future[bool]()

    def gather() -> None:
        sizes = {name: source.tensor(name).nbytes for name in source.shapes()}
        for names in in_buckets(sizes, 64_000):
            stream.put([(name, source.tensor(name)) for name in names])
        stream.end()
        outcome.set_result(stream.outcome())

    Thread(target=gather, daemon=True).start()
    return stream, outcome


async def send_stream(sender: WeightSender, version: int, model: Path, empty: Path) -> None:
    """Send a model by broadcast, with no file in `empty` to fall back on."""
    stream, outcome = streamed(DiskWeights(model), DiskWeights(empty))
    assert await sender.send(version, stream) == [None, None]
    stream.settle(True)
    assert await asyncio.wrap_future(outcome)


async def test_a_stream_goes_into_every_server_and_no_file_is_looked_at(
    pair: Any, checkpoints: Any, tmp_path: Path, collective: Groups
) -> None:
    servers, engines = pair
    async with WeightSender(engines, backend="gloo", timeout_s=20.0) as sender:
        for version, name in ((1, "b"), (2, "a")):
            await send_stream(sender, version, checkpoints[name], tmp_path)
            whole = expected_checksums(DiskWeights(checkpoints[name]), engines[0].checksums, "float32")
            assert [engine.checksums for engine in engines] == [whole, whole]
    assert [server.scheduler.label for server in servers] == ["2", "2"]


@pytest.mark.parametrize("fault", ["refuse_broadcast", "garbage"])
async def test_servers_that_miss_a_stream_take_the_files_when_they_are_there(
    pair: Any, checkpoints: Any, tmp_path: Path, fault: str, collective: Groups
) -> None:
    """Whoever gathers does not wait for that: the files are written next."""
    servers, engines = pair
    setattr(servers[0].faults, fault, True)
    stream, outcome = streamed(DiskWeights(checkpoints["b"]), DiskWeights(tmp_path))
    async with WeightSender(engines, backend="gloo", timeout_s=2.0) as sender:
        sending = asyncio.create_task(sender.send(1, stream))
        kept = tmp_path / "model.safetensors"
        asked = stream._kept.shapes

        def shapes() -> dict[str, tuple[int, ...]]:
            assert outcome.result(20.0) is False
            servers[0].faults.garbage = False
            kept.write_bytes((checkpoints["b"] / "model.safetensors").read_bytes())
            return asked()

        stream._kept.shapes = shapes  # type: ignore[method-assign]
        assert await sending == [None, None]
    assert [server.scheduler.label for server in servers] == ["1", "1"]
    assert engines[0].checksums == engines[1].checksums


async def test_a_group_that_was_left_inside_a_collective_is_never_used_again(
    pair: Any, checkpoints: Any, tmp_path: Path, collective: Groups
) -> None:
    _, engines = pair
    async with WeightSender(engines, backend="gloo", timeout_s=20.0) as sender:
        begun = asyncio.Event()

        class Stuck(WeightStream):
            async def __anext__(self) -> Bucket:
                begun.set()
                return await super().__anext__()

        stuck = Stuck(DiskWeights(checkpoints["b"]).shapes(), kept=DiskWeights(tmp_path))
        sending = asyncio.create_task(sender.send(1, stuck))
        await begun.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert all(engine.broken is not None for engine in engines), "their weights are not known"
        await send_stream(sender, 1, checkpoints["b"], tmp_path)
        assert len(collective) == 2


async def test_a_server_that_was_started_again_is_in_no_group(
    pair: Any, checkpoints: Any, tmp_path: Path, collective: Groups
) -> None:
    _, engines = pair
    async with WeightSender(engines, backend="gloo", timeout_s=20.0) as sender:
        for version, name in ((1, "b"), (2, "a"), (3, "b")):
            await send_stream(sender, version, checkpoints[name], tmp_path)
            assert len(collective) == (1 if version < 3 else 2)
            if version == 2:  # at another address, which here leads to the same one
                engines[1].api.url = engines[1].api.url.replace("http", "HTTP")


async def test_a_stream_that_breaks_off_is_served_by_nobody_as_if_it_were_whole(
    pair: Any, checkpoints: Any, tmp_path: Path, collective: Groups
) -> None:
    _, engines = pair
    stream = WeightStream(DiskWeights(checkpoints["b"]).shapes(), kept=DiskWeights(tmp_path))
    stream.end()
    async with WeightSender(engines, backend="gloo", timeout_s=20.0) as sender:
        failures = await sender.send(1, stream)
    assert [failure and failure.kind for failure in failures] == ["weights_behind", "weights_behind"]
    assert all(engine.broken is not None for engine in engines)
