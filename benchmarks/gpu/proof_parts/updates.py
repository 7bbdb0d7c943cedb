"""Updates: two policy updates of one small model, on the device against the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from rocstar.train.learner import sharding
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.settings import loss_settings
from rocstar.train.learner.world import World
from rocstar.train.recipe.config import Recipe

from .part import Part
from .recipes import recipe_of, rl_updates
from .results import SEED, UpdateError, Updates

UPDATES = 2
SPEC = OptimSpec(kind="adamw", lr=1e-3, weight_decay=0.0, grad_clip=1.0, warmup_steps=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The results of the updates, on the CPU in float32."""

    weights: list[Tensor]
    losses: list[float]
    gradient_norms: list[float]
    entropies: list[float]


def measure(part: Part) -> None:
    result: Updates = part.result
    for dtype in ("float32", "bfloat16"):
        recipe = recipe_of("toy", dtype=dtype, tokens_per_microbatch=2048, longest=300, tasks=2)
        row = compare(recipe, part.device)
        result.rows.append(row)
        if dtype == "float32":
            result.float32_weights_apart = row.weights_apart_over_moved
        else:
            result.bfloat16_gradient_norms_apart = row.gradient_norms_apart
        part.save()


def compare(recipe: Recipe, device: torch.device) -> UpdateError:
    start = [p.detach().clone() for p in fresh_model(recipe).parameters()]
    on_cpu, on_device = learned(recipe, torch.device("cpu")), learned(recipe, device)
    moved = distance(on_cpu.weights, start)
    norms = list(zip(on_cpu.gradient_norms, on_device.gradient_norms, strict=True))
    return UpdateError(
        dtype=recipe.model.dtype,
        weights_apart_over_moved=distance(on_cpu.weights, on_device.weights) / moved,
        losses=[on_cpu.losses, on_device.losses],
        gradient_norms=[on_cpu.gradient_norms, on_device.gradient_norms],
        entropies=[on_cpu.entropies, on_device.entropies],
        gradient_norms_apart=max(abs(a - b) / a for a, b in norms),
    )


def fresh_model(recipe: Recipe) -> Any:
    return build_model(recipe.model.scratch, recipe.model.scratch.vocab_size, seed=SEED)


def learned(recipe: Recipe, device: torch.device) -> Learned:
    """Update a fresh model `UPDATES` times on one device."""
    model = fresh_model(recipe)
    updates = rl_updates(recipe, model)
    with mock.patch.object(sharding, "local_device", return_value=device):
        sharding.shard(model, World(rank=0, size=1), recipe.model)
    learner = Learner(model)
    learner.use(SPEC)
    stats = [learner.policy_step(updates, loss_settings(recipe)) for _ in range(UPDATES)]
    weights = [whole(p).detach().float().cpu() for p in model.parameters()]
    if dist.is_initialized():  # the world of one belongs to this device
        dist.destroy_process_group()
    return Learned(
        weights=weights,
        losses=[one.loss for one in stats],
        gradient_norms=[norm for one in stats for norm in one.grad_norms],
        entropies=[float(one.entropy) for one in stats],
    )


def whole(parameter: Any) -> Tensor:
    """The tensor that FSDP2 shards."""
    full: Tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return full


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    return sum(float((x - y).norm() ** 2) for x, y in zip(a, b, strict=True)) ** 0.5
