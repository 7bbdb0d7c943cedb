"""What the first rank of a node does beside learning: where it serves, its threads, how weights get there."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from rocstar.train.learner.commands import NodeCommand, RankReply
from rocstar.train.learner.team import NodeCommandError
from rocstar.train.learner.world import World
from rocstar.train.publish import engine_publisher
from rocstar.train.publish.engine_publisher import serve_in
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.serving.embedded import Embedded
from rocstar.train.serving.nodes import NodeAddress, OpenNode, in_daemon, open_nodes, open_others, own_address

from ...patience import PATIENCE_S

T = TypeVar("T")
ALONE = World(rank=0, size=4, local_size=4)
TWO = World(rank=0, size=4, local_size=2)


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost", "no.such.host.invalid"])
def test_a_node_is_reached_where_rank_0_is(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", master)
    with pytest.raises(OSError) if "invalid" in master else contextlib.nullcontext():
        assert own_address() in ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("deterministic", "replicas", "siblings", "expected"),
    [(False, 1, 16, 50), (False, 2, 16, 100), (False, 1, 2, 100), (True, 1, 16, 1)],
)
def test_a_node_has_groups_for_its_slots(deterministic: bool, replicas: int, siblings: int, expected: int) -> None:
    engine = EngineConfig(max_running=100, replicas=replicas, deterministic=deterministic)
    rl = RlConfig(rollouts_per_task=siblings, group_size=min(8, siblings), max_staleness=0)
    assert Embedded().groups_at_once(Recipe(engine=engine, rl=rl)) == expected


async def test_a_daemon_gives_its_result_or_what_it_raised() -> None:
    name = await in_daemon(lambda: threading.current_thread().name, name="learner")
    assert name == "learner"

    def broken() -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        await in_daemon(broken, name="learner")


async def test_who_no_longer_waits_for_a_daemon_is_not_told() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    future = in_daemon(work, name="learner")
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    future.cancel()
    go_on.set()
    await asyncio.to_thread(lambda: [t.join(PATIENCE_S) for t in threading.enumerate() if t.name == "learner"])
    await asyncio.sleep(0)
    assert future.cancelled()


async def test_weights_serve_when_the_learner_thread_goes_on() -> None:
    served: list[int] = []

    async def publish(version: int, weights: Any) -> None:
        await asyncio.sleep(0)
        if version == 2:
            raise ValueError("version 2 does not follow 2")
        served.append(version)

    serve = serve_in(publish, asyncio.get_running_loop())
    assert await asyncio.to_thread(serve, 1, []) is None and served == [1]
    assert await asyncio.to_thread(serve, 2, []) == "ValueError: version 2 does not follow 2"


async def test_weights_that_are_never_taken_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_publisher, "PUBLISH_TIMEOUT_S", 0.01)

    async def publish(version: int, weights: Any) -> None:
        await asyncio.get_running_loop().create_future()

    serve = serve_in(publish, asyncio.get_running_loop())
    assert (await asyncio.to_thread(serve, 1, []) or "").startswith("TimeoutError")


class Team:
    """A learner whose other nodes reply this."""

    def __init__(self, world: World, *replies: RankReply) -> None:
        self.world, self.replies = world, replies
        self.told: list[Any] = []

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return work(*arguments)

    def command_nodes(self, command: NodeCommand) -> list[RankReply]:
        self.told.append(command)
        if problems := [reply.problem for reply in self.replies if reply.problem]:
            raise NodeCommandError(f"rank 2: {problems[0]}")
        return list(self.replies)


async def test_a_node_that_could_not_start_stops_the_run() -> None:
    good, bad = RankReply(rank=2, answer="http://10.0.0.2:9"), RankReply(rank=2, problem="OSError: no zygote")
    order, alone = OpenNode(), Team(ALONE)
    assert await open_others(cast(Any, alone), order) == [] and not alone.told
    team = Team(TWO, good)
    assert await open_others(cast(Any, team), order) == [NodeAddress(rank=2, url="http://10.0.0.2:9")]
    assert team.told == [order]
    with pytest.raises(TrainingStopped, match="a node cannot roll out: rank 2: OSError: no zygote"):
        await open_others(cast(Any, Team(TWO, bad)), order)


async def test_one_node_needs_none() -> None:
    async with open_nodes(Recipe(), [], None, lambda: None, print) as found:  # type: ignore[arg-type, return-value]
        assert found is None


async def test_a_node_nobody_answers_at_gets_nothing() -> None:
    from rocstar.engine.inference.base import KvLoad

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = NodeAddress(rank=2, url=f"http://127.0.0.1:{free.getsockname()[1]}")
    load = KvLoad(total=100, used=0, running=0, waiting=0)
    async with open_nodes(Recipe(), [address], "t", lambda: load, lambda _: None) as found:
        assert found is not None and found.num_up == 1
