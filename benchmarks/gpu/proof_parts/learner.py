"""Learner: a policy update at one size of model: tokens per second, MFU, measured and rehearsed memory."""

from __future__ import annotations

import gc
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from rocstar.train.learner.learner import Learner as PolicyLearner
from rocstar.train.learner.model_io import row_cost
from rocstar.train.learner.settings import loss_settings, stage_optimizer
from rocstar.train.learner.sharding import shard
from rocstar.train.learner.world import World
from rocstar.train.plan.plan import Machines
from rocstar.train.recipe.config import Recipe
from rocstar.train.rehearsal.memory_tracker import GIB, Category
from rocstar.train.rehearsal.rehearse import rehearse_recipe

from .models import random_model
from .part import Part, out_of_memory
from .recipes import recipe_of, rl_updates
from .results import Learner, LearnerStep

REPEATS = 3
FORWARDS = 3
"""FLOP of forward and backward over that of a forward."""
LEAST_S = 20
PEAK_TFLOPS = (("H100 PCIe", 756.0), ("H100 NVL", 835.0), ("H100", 989.0), ("H200", 989.0), ("MI300X", 1307.0))
"""Dense bfloat16 as the vendors state it, by a part of the device's name; the first that fits."""


def measure(part: Part) -> None:
    result: Learner = part.result
    result.size, result.dtype = part.which if part.on_device else "toy", "bfloat16"
    result.tokens_per_microbatch = 16_384 if part.on_device else 512
    result.peak_tflops = peak_tflops(part)
    result.measured_over_rehearsed = []
    for checkpointing in (False, True):
        step = LearnerStep(checkpointing=checkpointing)
        result.steps.append(step)
        if part.on_device and part.left() < LEAST_S:
            step.left_out = "time"
            continue
        recipe = recipe_of(
            result.size, dtype=result.dtype, checkpointing=checkpointing,
            tokens_per_microbatch=result.tokens_per_microbatch,
            longest=4096 if part.on_device else 200, tasks=8 if part.on_device else 2,
        )  # fmt: skip
        rehearse(part, recipe, step)
        part.save()
        if (memory := device_gib(part)) and step.rehearsed_gib > memory:
            step.left_out = f"needs {step.rehearsed_gib:.1f} GiB by the rehearsal, the device has {memory:.1f}"
            continue
        try:
            time_update(part, recipe, step)
        except torch.OutOfMemoryError as error:
            step.left_out = out_of_memory(error)
        forget(part)
        if step.measured_gib is not None and step.rehearsed_gib is not None:
            step.measured_over_rehearsed = step.measured_gib / step.rehearsed_gib
            result.measured_over_rehearsed.append(step.measured_over_rehearsed)
        result.best_mfu = max((one.mfu for one in result.steps if one.mfu is not None), default=None)
        part.save()


def device_gib(part: Part) -> float | None:
    """Memory of the device; None on a CPU."""
    return torch.cuda.get_device_properties(part.device).total_memory / GIB if part.on_device else None


def peak_tflops(part: Part) -> float | None:
    if not part.on_device:
        return None
    name = torch.cuda.get_device_name(part.device)
    return next((rate for known, rate in PEAK_TFLOPS if known in name), None)


def time_update(part: Part, recipe: Recipe, step: LearnerStep) -> None:
    """Time updates of random weights, after one that makes the moments and compiles."""
    model = random_model(recipe.model.scratch, part.device)
    updates, cost = rl_updates(recipe, model), row_cost(model)
    shard(model, World(rank=0, size=1), recipe.model)
    learner = PolicyLearner(model)
    learner.use(stage_optimizer(recipe))
    settings = loss_settings(recipe)

    def update() -> float:
        part.synchronize()
        began = time.perf_counter()
        learner.policy_step(updates, settings)
        part.synchronize()
        return time.perf_counter() - began

    step.first_s = update()
    if part.on_device:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step.seconds = median([update() for _ in range(REPEATS if part.on_device else 1)])
    if part.on_device:
        step.measured_gib = torch.cuda.max_memory_allocated() / GIB
    micros = [micro for update in updates for micro in update]
    step.tokens = sum(len(micro.ids_I) for micro in micros)
    step.loss_tokens = sum(micro.num_loss_tokens for micro in micros)
    step.tokens_per_s = step.tokens / step.seconds
    flop = FORWARDS * sum(
        cost.of(own, shared, targets)
        for micro in micros
        for own, shared, targets in zip(micro.lengths_S, micro.shared_S, micro.targets_S, strict=True)
    )
    step.model_tflops = flop / step.seconds / 1e12
    peak: float | None = part.result.peak_tflops
    step.mfu = step.model_tflops / peak if peak else None


def forget(part: Part) -> None:
    """Give all memory back, for the next model."""
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    if part.on_device:
        torch.cuda.empty_cache()


def rehearse(part: Part, recipe: Recipe, step: LearnerStep) -> None:
    """The rehearsal of the same update, on fake tensors."""
    rehearsed: Any = rehearse_recipe(recipe, Machines(), device_gib(part) or 80.0, acts=("rl",))
    peak = next(one for one in rehearsed.peaks if one.act == "rl")
    engine = peak.by_category.get(Category.engine, 0)  # none runs beside this learner
    step.rehearsed_gib = (peak.total - engine) / GIB
