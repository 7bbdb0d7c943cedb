"""Rank 0 and the nodes that only serve, through one store: every word is heard once, in order, and replied
to."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from rocstar.train.learner.commands import RankReply
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.store_channel import REPLY_S, LeaderLost, ServerLost, StoreChannel, decoded, encoded
from rocstar.train.learner.team import LearnerTeam, NodeCommandError
from rocstar.train.learner.world import World
from rocstar.train.publish.server_node import FilesWritten, MakeRoom, ServeVersion
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.serving.nodes import OpenNode, Start, follow_commands

from ...fakes.tiny import SCRATCH

SERVERS = (3, 4)


@pytest.fixture
def store() -> Any:
    any_dist: Any = dist
    return any_dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)


@pytest.fixture
def lines(store: Any) -> Iterator[list[StoreChannel]]:
    """Rank 0's end, and those of two nodes that only serve."""
    made = [StoreChannel(store, rank=rank, servers=SERVERS) for rank in (0, *SERVERS)]
    yield made
    for line in made:
        line.stop()


GOOD, BAD = MakeRoom(), FilesWritten(version=1)


def execute(command: Any) -> str:
    if command == BAD:
        raise ValueError("too high")
    return f"{type(command).__name__}: done"


def team_of(world: World) -> LearnerTeam:
    """A team whose learner does nothing."""
    with ThreadPoolExecutor(1) as thread:
        return LearnerTeam(build_model(SCRATCH, 40, seed=0), world, thread)


def test_commands_reach_every_serving_node_and_their_replies_come_back(lines: list[StoreChannel]) -> None:
    home, *others = lines
    team = team_of(World(rank=0, size=1, servers=2, line=home))
    with ThreadPoolExecutor(2) as threads:
        lives = [
            threads.submit(follow_commands, line, rank, execute) for line, rank in zip(others, SERVERS, strict=True)
        ]
        for word in (GOOD, OpenNode()):
            found = team.command_nodes(word)
            answer = f"{type(word).__name__}: done"
            assert found == [RankReply(rank=rank, answer=answer) for rank in SERVERS]
        with pytest.raises(NodeCommandError, match="rank 3: ValueError: too high; rank 4: ValueError"):
            team.command_nodes(BAD)
        home.end()
        assert all(life.result(60) is None for life in lives)


def test_rank_0_does_not_end_before_its_last_word_was_heard(lines: list[StoreChannel]) -> None:
    """The store may end with it."""
    home, *others = lines
    with ThreadPoolExecutor(1) as thread:
        ending = thread.submit(home.end)
        for line, rank in zip(others, SERVERS, strict=True):
            wait([ending], 0.5)
            assert not ending.done()
            follow_commands(line, rank, execute)
        assert ending.result(60) is None


@pytest.mark.parametrize(("lives", "told"), [(False, "not shown life"), (True, "lives, and has not answered")])
def test_rank_0_waits_for_a_node_as_long_as_it_lives_and_has_time(store: Any, lives: bool, told: str) -> None:
    """A torchrun does not hear of the end of another node's."""
    now = iter([0.0, *(REPLY_S * k for k in range(99))])
    beat_s = 0.001
    silent_s = 1e9 if lives else 0.0
    home = StoreChannel(store, rank=0, servers=SERVERS, beat_s=beat_s, silent_s=silent_s, clock=lambda: next(now))
    home.tell("walk")
    with pytest.raises(ServerLost, match=f"the node of rank 3, which only serves, is gone: it .*{told}"):
        home.replies()
    home.stop()


def test_without_its_store_a_node_says_that_rank_0_is_gone(lines: list[StoreChannel]) -> None:
    def gone(*given: Any) -> None:
        any_dist: Any = dist
        raise any_dist.DistNetworkError("connection reset")

    home, other, _ = lines
    home.tell("walk")
    other._store = SimpleNamespace(get=gone, set=gone)
    with pytest.raises(LeaderLost, match="rank 0 is gone: the store cannot be reached: connection reset"):
        other.hear()
    with pytest.raises(LeaderLost, match="the store cannot be reached"):
        other.reply("done")


def test_the_start_is_the_first_word(lines: list[StoreChannel]) -> None:
    home, other, _ = lines
    rank_0 = World(rank=0, size=1, servers=2, line=home)
    assert rank_0.broadcast("start") == "start" and rank_0.has_nodes and not rank_0.only_serves
    server = World(rank=3, size=1, servers=2, line=other)
    assert server.broadcast(None) == "start" and server.only_serves


def test_a_node_that_only_serves_ends_when_rank_0_is_gone(store: Any) -> None:
    line = StoreChannel(store, rank=3, servers=SERVERS, beat_s=0.01, silent_s=0.02)
    with pytest.raises(LeaderLost, match="it has not shown life"):
        line.hear()
    line.stop()


def test_words_travel_as_json_and_nothing_else_is_read() -> None:
    """The store has no password: what lies there must not be able to run code here."""
    serve = ServeVersion(version=3, folder=Path("/w"), is_live=True, reference=([1], [0.5]))
    for word in (None, "text", Start(path="p", token="t"), serve, OpenNode(), RankReply(rank=1, answer=serve)):
        assert decoded(encoded(word).encode()) == word
    with pytest.raises(TypeError, match="object"):
        encoded(object())
    wrong = [{"kind": "Start", "of": {"no": 1}}, {"kind": "Popen", "of": {}}, {"kind": "Path"}, {"kind": []}]
    for text in (pickle.dumps("word"), b"[" * 100_000, *(json.dumps(one).encode() for one in wrong)):
        with pytest.raises(TrainingStopped, match="master-port"):
            decoded(text)
