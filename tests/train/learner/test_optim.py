"""Learning rates over the steps, and which optimizer holds which parameter."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rocstar.train.learner.loss_stats import LossStats
from rocstar.train.learner.optim import OptimSpec, build
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.settings import EntropyControl, cold_start_optimizer, loss_settings, stage_optimizer
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.recipe.rl_config import RlConfig

from ...fakes.tiny import ADAMW, SCRATCH


def spec(**changes: Any) -> OptimSpec:
    return replace(ADAMW, weight_decay=0.0, **changes)


def rates(made: OptimSpec, steps: int) -> list[float]:
    return [made.rate(step) for step in range(steps)]


def test_the_warm_up_is_linear_and_begins_above_zero() -> None:
    assert rates(spec(warmup_steps=4), 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates(spec(), 3) == [1.0, 1.0, 1.0]


def test_the_decay_is_linear_down_to_two_percent() -> None:
    made = spec(total_steps=10, decay_fraction=0.5)
    assert rates(made, 11) == pytest.approx([1.0] * 6 + [0.8, 0.6, 0.4, 0.2, 0.02])
    assert rates(spec(total_steps=10, decay_fraction=1.0), 2) == pytest.approx([1.0, 0.9])


@given(warmup=st.integers(0, 20), total=st.integers(1, 60), decay=st.floats(0, 1))
def test_the_rate_stays_within_its_bounds(warmup: int, total: int, decay: float) -> None:
    made = spec(warmup_steps=warmup, total_steps=total, decay_fraction=decay)
    found = rates(made, total + 5)
    assert all(0 < rate <= 1 for rate in found)
    after = found[max(warmup - 1, 0) :]
    assert after == sorted(after, reverse=True)


def test_steps_use_the_rate_of_their_number() -> None:
    """One weight with gradient 1: Adam moves it by the learning rate."""
    module = nn.Linear(1, 1, bias=False)
    made = build(module, spec(warmup_steps=4))
    for rate in (0.25, 0.5, 0.75, 1.0, 1.0):
        assert made.lr == pytest.approx(rate * 1e-2)
        before = module.weight.item()
        made.zero_grad()
        module.weight.grad = torch.ones(1, 1)
        made.step()
        assert before - module.weight.item() == pytest.approx(rate * 1e-2, rel=1e-3)


def test_the_schedule_goes_on_where_it_was_saved() -> None:
    first, second = (build(nn.Linear(1, 1), spec(warmup_steps=8)) for _ in range(2))
    for _ in range(3):
        first.step()
    second.load_schedule_state(first.schedule_state())
    for _ in range(4):
        assert second.lr == first.lr
        first.step()
        second.step()
    assert second.optimizers[0].param_groups[0]["lr"] == first.lr


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_parameter_is_in_one_optimizer(kind: Any) -> None:
    model = build_model(SCRATCH, 40, seed=0)
    made = build(model, spec(kind=kind))
    held = [[id(p) for group in o.param_groups for p in group["params"]] for o in made.optimizers]
    assert sorted(itertools.chain(*held)) == sorted(id(p) for p in model.parameters())
    if kind == "muon":
        names = {id(p): name for name, p in model.named_parameters()}
        assert {names[p] for p in held[0]} == {n for n in names.values() if "proj" in n}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("tied", [False, True])
def test_matrices_decay_and_norms_and_embeddings_do_not(kind: Any, tied: bool) -> None:
    """Without gradient a step of a decayed weight is its decay alone."""
    model = build_model(SCRATCH, 40, seed=0)
    if not tied:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    made = build(model, replace(ADAMW, kind=kind))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    decayed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert decayed == {name for name in before if "proj" in name or name == "lm_head.weight"}
    assert decayed.isdisjoint(name for name in before if "norm" in name or "embed" in name)


def test_betas_are_those_of_the_recipe() -> None:
    recipe = parse_recipe({"rl": {"betas": [0.8, 0.9]}, "sft": {"betas": [0.7, 0.99]}}, where="test")
    assert build(nn.Linear(1, 1), stage_optimizer(recipe)).optimizers[0].defaults["betas"] == (0.8, 0.9)
    assert cold_start_optimizer(recipe.sft).betas == (0.7, 0.99)
    for wrong in ([0.9], [0.9, 1.0], [-0.1, 0.9]):
        with pytest.raises(ConfigError, match="two numbers from 0 to below 1"):
            parse_recipe({"rl": {"betas": wrong}}, where="test")


def test_frozen_parameters_are_left_out() -> None:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    assert build(module, spec()).optimizers[0].param_groups[0]["params"] == [module.weight]


def test_the_warm_up_is_counted_in_steps_of_rollouts() -> None:
    spec = stage_optimizer(Recipe(rl=RlConfig(warmup_steps=5, num_updates_per_batch=2, lr=1e-3)))
    assert (spec.kind, spec.lr, spec.warmup_steps, spec.decay_fraction) == ("adamw", 1e-3, 10, 0.0)
    assert [spec.rate(k) for k in (0, 9, 10_000)] == [0.1, 1.0, 1.0]


def test_the_distance_to_the_start_is_measured_every_so_many_steps() -> None:
    recipe = Recipe(rl=RlConfig(start_kl_every=3))
    assert [k for k in range(10) if loss_settings(recipe, k).measures_start] == [3, 6, 9]
    assert not any(loss_settings(Recipe(), k).measures_start for k in range(10))


def test_the_coefficient_of_the_entropy_rises_below_the_target_and_acts_there_alone() -> None:
    rl, control, found = RlConfig(entropy_target=0.2, entropy_step=0.5), EntropyControl(), []
    for entropy in (0.1, 0.1, 0.3, 0.1, 0.2, 0.2, 0.2, 0.1):
        control = control.after(LossStats(entropy=8 * entropy, tokens=8.0), rl)
        found.append((control.c, control.alpha))
    assert found == [(0.5, 0.5), (1.0, 1.0), (0.5, 0.0), (1.0, 1.0), (0.5, 0.0), (0.0, 0.0), (0.0, 0.0), (0.5, 0.5)]


def test_a_step_that_learns_nothing_leaves_it_and_a_target_of_0_turns_the_term_off() -> None:
    recipe, before = Recipe(rl=RlConfig(entropy_target=0.5)), EntropyControl(c=0.5)
    for stats in (LossStats(entropy=4.0, tokens=10.0, is_paused=True), LossStats()):
        assert before.after(stats, recipe.rl) == before
    assert EntropyControl().after(LossStats(tokens=10.0), RlConfig()) == EntropyControl()
    assert [loss_settings(one, alpha=0.75).entropy_alpha for one in (recipe, Recipe())] == [0.75, 0.0]
