"""One process needs no collectives; a rank's place and threads come from torchrun's environment."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.inference.weights import DiskWeights
from rocstar.train.learner import gather
from rocstar.train.learner.commands import NodeCommand, RankReply
from rocstar.train.learner.learner import LocalEngine
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.team import LearnerTeam, NodeCommandError, check_replies
from rocstar.train.learner.world import World
from rocstar.train.publish import rank_commands
from rocstar.train.publish.rank_commands import FullWeights, PublishError, SendWeights, weight_shapes, weight_source
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.model_config import ModelConfig

from ...fakes.tiny import ADAMW, SCRATCH
from ...patience import PATIENCE_S

ALONE = World(rank=0, size=1)


@pytest.fixture
def team_of(thread: ThreadPoolExecutor) -> Callable[..., LearnerTeam]:
    return lambda *config, **options: LearnerTeam(build_model(SCRATCH, 40, seed=0), ALONE, thread, *config, **options)


async def test_one_process_shares_its_weights_with_the_engine(team_of: Callable[..., LearnerTeam]) -> None:
    team = team_of()
    await team.use(ADAMW)
    assert await weight_source(team, 1) is None
    await team.stop()


async def test_learner_work_leaves_the_event_loop_free(team_of: Callable[..., LearnerTeam]) -> None:
    team, begun, go_on = team_of(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def use(_: OptimSpec) -> None:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(timeout=PATIENCE_S)

    team.rank.learner.use = use  # type: ignore[method-assign]
    work = asyncio.create_task(team.use(ADAMW))
    await begun.wait()  # the learner works, and the loop got here
    go_on.set()
    await work


def test_every_rank_learns_that_a_node_does_not_serve_the_weights(
    team_of: Callable[..., LearnerTeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two nodes, in one process: its message to the other comes back to both."""
    served: list[int] = []

    def all_gather_object(found: list[str | None], problem: str | None) -> None:
        found[1] = problem

    def serve(version: int, weights: Any) -> str | None:
        served.append(version)
        assert dict(weights).keys() == dict(team.learner.model.named_parameters()).keys()
        return "ValueError: too late" if version == 4 else None

    team = team_of()
    team.rank.world = World(rank=1, size=2, local_size=1)
    team.learner.engine = LocalEngine(serve=serve)
    monkeypatch.setattr(rank_commands.dist, "all_gather_object", all_gather_object)
    team.rank.execute(FullWeights(3))
    team.rank.execute(FullWeights(None))  # of no version: no engine serves them
    with pytest.raises(PublishError, match="version 4 is not served on every node: rank 1: ValueError"):
        team.rank.execute(FullWeights(4))
    assert served == [3, 4]


@dataclass(frozen=True)
class Move(NodeCommand):
    how: str


def test_what_a_node_answers_to_a_command_or_why_it_cannot(
    team_of: Callable[..., LearnerTeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two nodes, in one process; a learner without a node to serve has no reply."""
    told: list[Any] = []

    def gather(self: World, value: Any) -> list[Any]:
        told.append(value)
        return [None, value]

    def execute(command: NodeCommand) -> str:
        assert isinstance(command, Move)
        if command.how == "jump":
            raise ValueError("too high")
        return f"{command.how}: done"

    monkeypatch.setattr(World, "gather", gather)
    teams = without, team = team_of(), team_of(execute_on_node=execute)
    assert without.command_nodes(Move("walk")) == [] and not told, "one process has no others"
    for one in teams:
        one.rank.world = World(rank=1, size=2, local_size=1)
    assert without.command_nodes(Move("walk")) == [] and told == [None]
    assert team.command_nodes(Move("walk")) == [RankReply(rank=1, answer="walk: done")]
    with pytest.raises(NodeCommandError, match="rank 1: ValueError: too high"):
        team.command_nodes(Move("jump"))


async def test_weights_go_bucket_by_bucket_into_the_stream_of_this_rank(
    team_of: Callable[..., LearnerTeam], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gather, "BUCKET_BYTES", 1)
    team = team_of(ModelConfig(dtype="bfloat16"))
    assert await team.run(SendWeights(None)) == [], "no engine takes them here"
    stream = WeightStream(weight_shapes(team), kept=DiskWeights(tmp_path))
    sending = asyncio.create_task(team.run(SendWeights(stream)))
    got = [(name, tensor) async for bucket in stream for name, tensor in bucket]
    stream.settle(False)
    assert await sending == [RankReply(rank=0, answer=False)]
    own = dict(team.learner.model.named_parameters())
    assert [name for name, _ in got] == list(own)
    assert all(torch.equal(tensor, own[name].bfloat16()) for name, tensor in got)


async def test_what_goes_wrong_where_the_weights_are_served_is_the_reply(
    team_of: Callable[..., LearnerTeam], tmp_path: Path
) -> None:
    """Rank 0 knows its own failure; that of another rank ends the run. The stream is the node's answer."""
    team = team_of(execute_on_node=lambda _: stream)
    for rank in (0, 1):
        team.rank.world = World(rank=rank, size=1)
        stream = WeightStream(weight_shapes(team), kept=DiskWeights(tmp_path))
        assert team.command_nodes(Move("open")) == [RankReply(rank=rank)]
        stream.let_go()
        stream.settle(False, TrainingStopped("no server took it"))
        replies = await team.run(SendWeights(None))
        assert replies == [RankReply(rank=rank, problem="TrainingStopped: no server took it")]
    with pytest.raises(NodeCommandError, match="rank 1: TrainingStopped: no server took it"):
        check_replies(replies)
