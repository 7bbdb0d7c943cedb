"""A rank's role, place and threads come from torchrun's environment; which ranks split the weights."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
import torch

from rocstar.train.learner import world as module
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.sharding import is_apart, mesh_shape, placed
from rocstar.train.learner.world import Roles, World, local_device, num_cores
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.model_config import ModelConfig

from ...fakes.tiny import SCRATCH

ALONE = World(rank=0, size=1)


def torchruns(rank: int, size: int, local: int, role: str, of_role: int) -> dict[str, str]:
    given = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": local, "ROLE_WORLD_SIZE": of_role}
    return {name: str(value) for name, value in given.items()} | {"ROLE_NAME": role}


def test_without_torchrun_one_process_learns() -> None:
    assert Roles.of({}) == Roles(learners=1, servers=0, serves=False, learners_per_node=1)
    started_by_hand = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    assert Roles.of(started_by_hand) == Roles(learners=4, servers=0, serves=False, learners_per_node=2)


def test_three_nodes_of_seven_learn_and_five_serve() -> None:
    learner = Roles.of(torchruns(20, 26, 7, "default", 21))
    assert learner == Roles(learners=21, servers=5, serves=False, learners_per_node=7)
    server = Roles.of(torchruns(21, 26, 1, "server", 5))
    assert server == Roles(learners=21, servers=5, serves=True, learners_per_node=0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (torchruns(8, 10, 2, "server", 2), "--nproc-per-node=1"),
        (torchruns(0, 2, 1, "server", 2), "and some other node learns"),
        (torchruns(0, 3, 1, "server", 1), "come last"),
        (torchruns(2, 3, 2, "default", 2), "come last"),
    ],
)
def test_another_way_of_starting_is_refused_with_the_right_one(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Roles.of(given)


def test_without_torchrun_the_world_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert World.join() == ALONE
    assert ALONE.broadcast("x") == "x"
    assert (ALONE.threads(0), ALONE.threads(5)) == (torch.get_num_threads(), 5) and num_cores() >= 1
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


@pytest.mark.parametrize(
    ("sharding", "ranks", "per_node", "shape"),
    [("all", 8, 4, (8,)), ("node", 8, 4, (2, 4)), ("node", 4, 4, (4,)), ("node", 3, 1, (3, 1))],
)
def test_a_node_is_a_row_of_its_own_where_asked(
    sharding: str, ranks: int, per_node: int, shape: tuple[int, ...]
) -> None:
    assert mesh_shape(sharding, ranks, per_node) == shape


def test_nodes_that_are_not_alike_cannot_hold_copies() -> None:
    with pytest.raises(ConfigError, match=r"model\.sharding = 'node': 7 ranks do not part into nodes of 4"):
        mesh_shape("node", 7, 4)


def test_a_model_that_learns_in_bfloat16_is_not_the_one_that_is_served() -> None:
    half = ModelConfig(dtype="bfloat16")
    assert not is_apart(ALONE, ModelConfig())
    assert is_apart(ALONE, half) and is_apart(World(rank=0, size=2), ModelConfig())
    assert placed(build_model(SCRATCH, 40, seed=0), half).dtype == torch.bfloat16
