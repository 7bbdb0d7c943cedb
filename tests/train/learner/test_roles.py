"""What a process is to do, by what torchrun says of it."""

from __future__ import annotations

import pytest

from rocstar.train.learner.roles import Roles
from rocstar.train.recipe.errors import ConfigError


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
