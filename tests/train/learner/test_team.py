"""One process needs no collectives; a rank's place and threads come from torchrun's environment."""

import asyncio
import inspect
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.inference.weights import DiskWeights
from rocstar.train.learner import gather
from rocstar.train.learner import team as module
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.team import (
    LearnerTeam,
    OrderError,
    PublishError,
    RankReply,
    World,
    is_apart,
    local_device,
    num_cores,
    placed,
)
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.model_config import ModelConfig, ScratchConfig

from ...patience import PATIENCE_S

ALONE = World(rank=0, size=1)
SCRATCH = ScratchConfig(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64)


def test_without_torchrun_the_world_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert World.join() == ALONE
    assert ALONE.broadcast("x") == "x"
    ALONE.leave()


def test_ranks_that_never_come_are_not_waited_for_all_day(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"WORLD_SIZE": 2, "RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(module, "JOIN_TIMEOUT", timedelta(seconds=0.2))
    with pytest.raises(TrainingStopped, match="not all of the 2 ranks came"):
        World.join()


@pytest.mark.parametrize(
    ("local_size", "wanted", "alone", "expected"),
    [(2, 0, False, 4), (2, 0, True, 8), (2, 3, False, 3), (2, 3, True, 3), (16, 0, False, 1)],
)
def test_ranks_share_the_cores_of_their_machine(
    monkeypatch: pytest.MonkeyPatch, local_size: int, wanted: int, alone: bool, expected: int
) -> None:
    monkeypatch.setattr(module, "num_cores", lambda: 8)
    assert World(rank=0, size=32, local_size=local_size).threads(wanted, alone=alone) == expected


def test_a_rank_learns_on_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_device() == torch.device("cpu") or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device() == torch.device("cuda", 3)
    monkeypatch.delenv("LOCAL_RANK")
    assert local_device() == torch.device("cuda", 0)


def test_a_model_that_learns_in_bfloat16_is_not_the_one_that_is_served() -> None:
    half = ModelConfig(dtype="bfloat16")
    assert not is_apart(ALONE, ModelConfig())
    assert is_apart(ALONE, half) and is_apart(World(rank=0, size=2), ModelConfig())
    assert placed(build_model(SCRATCH, 40, seed=0), half).dtype == torch.bfloat16


def test_one_process_takes_what_torch_takes() -> None:
    assert ALONE.threads(0) == torch.get_num_threads()
    assert ALONE.threads(5) == 5
    assert num_cores() >= 1


async def test_one_process_shares_its_weights_with_the_engine() -> None:
    with ThreadPoolExecutor(1) as thread:
        team = LearnerTeam(build_model(SCRATCH, 40, seed=0), ALONE, thread)
        await team.use(OptimSpec(kind="adamw", lr=1.0, weight_decay=0.0, grad_clip=1.0, warmup_steps=0))
        assert await team.full_weights(1) is None
        await team.stop()


def test_every_verb_that_rank_0_sends_is_one_that_a_rank_knows() -> None:
    with ThreadPoolExecutor(1) as thread:
        team = LearnerTeam(build_model(SCRATCH, 40, seed=0), ALONE, thread)
    sent = re.findall(r'_(?:everywhere|scatter)\("(\w+)"', inspect.getsource(module))
    assert {*sent} == {*team._verbs}, "`stop` is no verb: it ends `follow`"


async def test_learner_work_leaves_the_event_loop_free() -> None:
    with ThreadPoolExecutor(1) as thread:
        team = LearnerTeam(build_model(SCRATCH, 40, seed=0), ALONE, thread)
        begun, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def use(_: OptimSpec) -> None:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(timeout=PATIENCE_S)

        team.learner.use = use  # type: ignore[method-assign]
        spec = OptimSpec(kind="adamw", lr=1.0, weight_decay=0.0, grad_clip=1.0, warmup_steps=0)
        work = asyncio.create_task(team.use(spec))
        await begun.wait()  # the learner works, and the loop got here
        go_on.set()
        await work


def test_every_rank_learns_that_a_node_does_not_serve_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two nodes, in one process: what it tells the other comes back to both."""
    served: list[int] = []

    def all_gather_object(found: list[str | None], problem: str | None) -> None:
        found[1] = problem

    def serve(version: int, weights: Any) -> str | None:
        served.append(version)
        assert dict(weights).keys() == dict(team.learner.model.named_parameters()).keys()
        return "ValueError: too late" if version == 4 else None

    with ThreadPoolExecutor(1) as thread:
        team = LearnerTeam(build_model(SCRATCH, 40, seed=0), ALONE, thread)
    team.world = World(rank=1, size=2, local_size=1)
    team.serve = serve
    monkeypatch.setattr(module.dist, "all_gather_object", all_gather_object)
    team._run("full_weights", (3,))
    team._run("full_weights", (None,))  # of no version: nobody serves them
    with pytest.raises(PublishError, match="version 4 is not served on every node: rank 1: ValueError"):
        team._run("full_weights", (4,))
    assert served == [3, 4]


def test_what_a_node_answers_to_an_order_or_why_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two nodes, in one process: what it replies is gathered; the learner that has no node to
    serve replies nothing."""
    told: list[Any] = []

    def gather(self: World, value: Any) -> list[Any]:
        told.append(value)
        return [None, value]

    def do_order(order: str) -> str:
        if order == "jump":
            raise ValueError("too high")
        return f"{order}: done"

    with ThreadPoolExecutor(1) as thread:
        team = LearnerTeam(build_model(SCRATCH, 40, seed=0), ALONE, thread)
    assert team.order_here("walk") == [], "one process has no others"
    team.world = World(rank=1, size=2, local_size=1)
    monkeypatch.setattr(World, "gather", gather)
    monkeypatch.setattr(team, "_scatter", lambda verb, payloads: payloads[0])
    assert team.order_here("walk") == [] and told == [None]
    team.do_order = do_order
    assert team.order_here("walk") == [RankReply(rank=1, answer="walk: done")]
    with pytest.raises(OrderError, match="rank 1: ValueError: too high"):
        team.order_here("jump")


async def test_weights_go_bucket_by_bucket_into_the_stream_of_this_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gather, "BUCKET_BYTES", 1)
    with ThreadPoolExecutor(1) as thread:
        config = ModelConfig(dtype="bfloat16")
        team = LearnerTeam(build_model(SCRATCH, 40, seed=0), ALONE, thread, config)
        assert await asyncio.to_thread(team.send_weights_here) == [], "nobody takes them here"
        stream = WeightStream(team.shapes(), kept=DiskWeights(tmp_path))
        team.send_into(stream)
        sending = thread.submit(team.send_weights_here)
        got = [(name, tensor) async for bucket in stream for name, tensor in bucket]
        stream.settle(False)
        assert await asyncio.wrap_future(sending) == [RankReply(rank=0, answer=False)]
    own = dict(team.learner.model.named_parameters())
    assert [name for name, _ in got] == list(own)
    assert all(torch.equal(tensor, own[name].bfloat16()) for name, tensor in got)


async def test_what_goes_wrong_where_the_weights_are_served_is_the_reply(tmp_path: Path) -> None:
    """Rank 0 knows its own failure; that of another rank ends the run."""
    with ThreadPoolExecutor(1) as thread:
        team = LearnerTeam(build_model(SCRATCH, 40, seed=0), ALONE, thread)
        for rank in (0, 1):
            team.world = World(rank=rank, size=1)
            stream = WeightStream(team.shapes(), kept=DiskWeights(tmp_path))
            team.send_into(stream)
            stream.let_go()
            stream.settle(False, TrainingStopped("no server took it"))
            sending = asyncio.wrap_future(thread.submit(team.send_weights_here))
            if rank:
                with pytest.raises(OrderError, match="rank 1: TrainingStopped: no server took it"):
                    await sending
            else:
                assert (await sending)[0].problem == "TrainingStopped: no server took it"
