"""Same seed, same bits, with as many torch threads as a machine has."""

import os
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from rocstar.train.learner.batch import pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.world import deterministic_torch
from rocstar.train.recipe.model_config import ScratchConfig

from ...fakes.tiny import ADAMW, assert_same_weights, make_example

CPU = torch.device("cpu")
VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
VOCAB = 300
TOKENS = 2000
"""Times 96 hidden units, that is several pieces of what torch gives a thread."""


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def examples() -> list[Example]:
    """Siblings with a common beginning, and with tool output between their turns."""
    rng = random.Random(0)
    prompt = [rng.randrange(VOCAB) for _ in range(40)]
    rows = []
    for k in range(TOKENS // 50):
        ids = prompt[: 40 - k % 3] + [rng.randrange(VOCAB) for _ in range(50)]
        mask = [0] * 40 + [t % 7 > 1 for t in range(len(ids) - 40)]
        advantage = rng.choice([-1.0, 1.0])
        rows.append(make_example(ids, mask, weight=1 / TOKENS, advantage=advantage))
    return rows


def model_after(steps: int) -> PreTrainedModel:
    learner = Learner(build_model(ScratchConfig(), VOCAB, seed=0))
    learner.use(replace(ADAMW, kind="muon"))
    for _ in range(steps):
        learner.imitation_step(pack(examples(), tokens_per_microbatch=8192))
    return learner.model


def test_updates_have_the_same_bits_however_threads_are_scheduled() -> None:
    """Without the setting the weights differ after the first step or two."""
    with deterministic_torch(True, CPU):
        expected = model_after(3)
        for _ in range(2):
            assert_same_weights(model_after(3), expected)


@pytest.mark.parametrize("wanted", [True, False])
def test_the_setting_is_as_before_afterwards(wanted: bool) -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic_torch(True, CPU), deterministic_torch(wanted, CPU):
        assert torch.are_deterministic_algorithms_enabled(), "an inner one asks for no less"
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("chosen", [None, ":16:8"])
def test_on_a_gpu_nothing_may_be_nondeterministic(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch only warns, attention's backward adds up in any order, and so does cuBLAS."""
    monkeypatch.delenv(VARIABLE, raising=False)
    if chosen:
        monkeypatch.setenv(VARIABLE, chosen)
    with deterministic_torch(True, CPU):
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ.get(VARIABLE) == chosen
    with deterministic_torch(True, torch.device("cuda", 0)):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ[VARIABLE] == (chosen or ":4096:8")
    monkeypatch.delenv(VARIABLE)
