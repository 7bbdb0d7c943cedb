"""Forks: branches of a rollout share the parent's part, and nothing else."""

from rocstar.engine.types import Fork, TrajectoryKey
from tests.fakes.trajectories import FakeTurn, make_trajectory


def test_a_branch_counts_and_trains_what_it_sampled_itself() -> None:
    turns = FakeTurn(ids=[2, 3], answer=[7]), FakeTurn(ids=[4, 5, 6])
    root = make_trajectory(*turns)
    branch = make_trajectory(*turns, fork=Fork(parent="", turns=1, start=4))
    assert root.loss_mask().tolist() == [False, True, True, False, True, True, True]
    assert branch.loss_mask().tolist() == [False, False, False, False, True, True, True]
    assert (root.num_policy_tokens, branch.num_policy_tokens) == (5, 3)
    assert len(branch.turns) == 2


def test_a_key_names_its_branch() -> None:
    root = TrajectoryKey(seed=0, step=4, task_id="a", sibling=5)
    assert str(root) == "s4/a/5"
    assert str(TrajectoryKey(seed=0, step=4, task_id="a", sibling=5, branch="3.1/5.2")) == "s4/a/5~3.1/5.2"
