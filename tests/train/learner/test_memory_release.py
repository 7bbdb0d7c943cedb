"""What a learner gives back is gone, is counted, and is not missed."""

import pytest
import torch
from torch import Tensor

from rocstar.train.learner import optim
from rocstar.train.learner.batch import MicroBatch, pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.memory_release import ReleasedMemory
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.scratch import build_model
from rocstar.train.record.metrics import check_names

from ...fakes.tiny import SCRATCH

torch.set_num_threads(1)

SPECS = {
    kind: OptimSpec(kind=kind, lr=1e-2, weight_decay=0.1, grad_clip=1.0, warmup_steps=2)  # type: ignore[arg-type]
    for kind in ("adamw", "muon")
}


def made(kind: str, steps: int) -> Learner:
    learner = Learner(build_model(SCRATCH, 60, seed=3))
    learner.use(SPECS[kind])
    for _ in range(steps):
        learner.imitation_step(micros())
    return learner


def micros() -> list[MicroBatch]:
    example = Example(
        ids=[3, 9, 4, 7, 7, 1],
        mask=[0, 0, 1, 1, 0, 1],
        weights=[0.0, 0.0, 0.3, 0.3, 0.0, 0.3],
        rollout_logprobs=[None] * 6,
        advantage=1.0,
    )
    return pack([example], tokens_per_microbatch=64)


def test_gradients_are_dropped_and_counted() -> None:
    learner = made("adamw", 1)
    weights = 4 * sum(p.numel() for p in learner.model.parameters())
    released = learner.release_memory()
    assert released == ReleasedMemory(gradients=weights, moments=0, held=0)
    assert all(p.grad is None for p in learner.model.parameters())
    assert learner.release_memory().gradients == 0, "once"
    check_names(released.metrics())


def test_a_learner_that_was_given_no_optimizer_has_nothing() -> None:
    assert Learner(build_model(SCRATCH, 60, seed=3)).release_memory() == ReleasedMemory(
        gradients=0, moments=0, held=0
    )


@pytest.mark.parametrize("kind", SPECS)
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
    for one, two in zip(learner.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_tensor_goes_only_where_it_is_not() -> None:
    here, away = torch.zeros(3), torch.zeros(2, device="meta")
    assert optim.sent_to([here], torch.device("cpu"))[0] is here
    sent = optim.sent_to([here, away], torch.device("meta"))
    assert sent[0].is_meta and sent[0].shape == (3,) and sent[1] is away
