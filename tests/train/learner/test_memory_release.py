"""What a learner gives back is gone, is counted, and is not missed."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rocstar.train.learner import optim
from rocstar.train.learner.batch import MicroBatch, pack
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.memory_release import ReleasedMemory
from rocstar.train.learner.scratch import build_model
from rocstar.train.record.metrics import check_names

from ...fakes.tiny import ADAMW, SCRATCH, assert_same_weights, make_example


def made(kind: Any, steps: int) -> Learner:
    learner = Learner(build_model(SCRATCH, 60, seed=3))
    learner.use(replace(ADAMW, kind=kind, warmup_steps=2))
    for _ in range(steps):
        learner.imitation_step(micros())
    return learner


def micros() -> list[MicroBatch]:
    return pack([make_example([3, 9, 4, 7, 7, 1], [0, 0, 1, 1, 0, 1], weight=0.3)], tokens_per_microbatch=64)


def test_gradients_are_dropped_and_counted() -> None:
    learner = made("adamw", 1)
    weights = 4 * sum(p.numel() for p in learner.model.parameters())
    released = learner.release_memory()
    assert released == ReleasedMemory(gradients=weights, moments=0, held=0)
    assert all(p.grad is None for p in learner.model.parameters())
    assert learner.release_memory().gradients == 0, "once"
    check_names(released.metrics())


def test_a_learner_that_was_given_no_optimizer_has_nothing() -> None:
    released = Learner(build_model(SCRATCH, 60, seed=3)).release_memory()
    assert released == ReleasedMemory(gradients=0, moments=0, held=0)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_moments_leave_and_come_back_for_the_next_update(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has no other device: what `sent_to` is asked is looked at, and its copies go on learning."""
    learner, other = made(kind, 2), made(kind, 2)
    asked: list[tuple[int, torch.device]] = []

    def sent_to(tensors: list[Tensor], device: torch.device) -> list[Tensor]:
        asked.extend((tensor.numel(), device) for tensor in tensors)
        return [tensor.clone() for tensor in tensors]

    monkeypatch.setattr(optim, "sent_to", sent_to)
    learner.offloads_moments = True
    released = learner.release_memory()
    moments = sum(numbers for numbers, _ in asked)
    assert released.moments == 4 * moments > 0
    asked.clear()
    learner.imitation_step(micros())
    assert sum(numbers for numbers, _ in asked) == moments, "before the update, all of them come back"
    monkeypatch.undo()
    other.imitation_step(micros())
    assert_same_weights(learner.model, other.model)
