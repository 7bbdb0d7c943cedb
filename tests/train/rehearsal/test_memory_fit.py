"""What does not fit is refused with the field that helps most."""

import dataclasses

import pytest

from rocstar.train.rehearsal.memory_fit import OVERHEAD_GIB, MemorySettings, check_fit
from rocstar.train.rehearsal.memory_tracker import GIB, Category, MemoryPeak

SETTINGS = MemorySettings(
    tokens_per_microbatch=20480, rehearsed_tokens=20480, checkpointing=False, dtype="bfloat16", ranks=64
)
CHECKPOINTED = dataclasses.replace(SETTINGS, checkpointing=True)


def peak(*, activations: float, parameters: float = 10.0, act: str = "rl") -> MemoryPeak:
    held = {Category.activations: int(activations * GIB), Category.parameters: int(parameters * GIB)}
    return MemoryPeak(act=act, by_category=held)


def test_the_driver_s_memory_counts() -> None:
    fits = check_fit(peak(activations=70 - OVERHEAD_GIB), 80.0, SETTINGS)
    assert fits.fits and fits.spare == 0 and not fits.fix
    assert not check_fit(peak(activations=70.1 - OVERHEAD_GIB), 80.0, SETTINGS).fits


def test_activations_are_first_checkpointed_then_cut() -> None:
    assert "activation_checkpointing" in check_fit(peak(activations=225), 192.0, SETTINGS).fix
    fix = check_fit(peak(activations=120), 80.0, CHECKPOINTED).fix
    advised = int(fix.split("tokens_per_microbatch = ")[1].split()[0])
    assert advised == pytest.approx(20480 * 0.95 * 68 / 120, abs=256)


@pytest.mark.parametrize(("dtype", "word"), [("float32", "model.dtype"), ("bfloat16", "more GPUs")])
def test_state_that_does_not_fit_needs_another_change(dtype: str, word: str) -> None:
    settings = dataclasses.replace(CHECKPOINTED, dtype=dtype)
    assert word in check_fit(peak(activations=1, parameters=90), 80.0, settings).fix


def test_a_publish_that_does_not_fit_is_named() -> None:
    assert "publish" in check_fit(peak(activations=100, act="publish"), 80.0, SETTINGS).fix
