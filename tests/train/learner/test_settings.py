"""What a recipe asks of the learner."""

from __future__ import annotations

from rocstar.train.learner.settings import loss_settings, stage_optimizer
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.rl_config import RlConfig


def test_the_warm_up_is_counted_in_steps_of_rollouts() -> None:
    spec = stage_optimizer(Recipe(rl=RlConfig(warmup_steps=5, num_updates_per_batch=2, lr=1e-3)))
    assert (spec.kind, spec.lr, spec.warmup_steps, spec.decay_fraction) == ("adamw", 1e-3, 10, 0.0)
    assert [spec.rate(k) for k in (0, 9, 10_000)] == [0.1, 1.0, 1.0]


def test_the_distance_to_the_start_is_measured_every_so_many_steps() -> None:
    recipe = Recipe(rl=RlConfig(start_kl_every=3))
    assert [k for k in range(10) if loss_settings(recipe, k).measures_start] == [3, 6, 9]
    assert not any(loss_settings(Recipe(), k).measures_start for k in range(10))
