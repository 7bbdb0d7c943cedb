"""Checkpoints (contract 10): `step_N/` is a Hugging Face directory, `step_N/state/` is what resuming needs.

    write step_N.partial/ -> model, tokenizer, state/ -> COMPLETE -> rename to step_N/

A directory without COMPLETE, or still named .partial, does not exist for anybody.
"""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rocstar.train.learner import Learner

COMPLETE = "COMPLETE"


class CheckpointError(Exception):
    """A checkpoint could not be written or read: path, reason, fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What goes into a checkpoint beside the model: the tokenizer, and the progress as JSON."""

    tokenizer: PreTrainedTokenizerBase
    progress: dict[str, Any]


def step_directory(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"step_{step}"


def latest(run_dir: Path) -> Path | None:
    """The complete checkpoint with the highest step, or None."""
    found = [p for p in (run_dir / "checkpoints").glob("step_*") if (p / COMPLETE).is_file()]
    return max(found, key=lambda p: int(p.name.removeprefix("step_")), default=None)


def full_weights(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """Every parameter unsharded; a collective under FSDP. A tied parameter appears once."""
    weights = []
    for name, parameter in model.named_parameters():
        full = getattr(parameter, "full_tensor", None)
        weights.append((name, (full() if full else parameter).detach()))
    return weights


def save(directory: Path, learner: Learner, extras: Extras, rank: int, world_size: int) -> None:
    """Write a checkpoint; every rank calls it. The directory appears complete or not at all."""
    partial = directory.with_name(directory.name + ".partial")
    weights = full_weights(learner.model)
    if rank == 0:
        _check_space(directory, weights)
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "state").mkdir(parents=True)
    if world_size > 1:
        dist.barrier()
    _save_optimizer(partial / "state" / "optimizer", learner)
    if rank == 0:
        save_model(partial, learner.model, weights, extras.tokenizer)
        state = {"schedule": learner.optimizers.schedule_state(), "progress": extras.progress}
        (partial / "state" / "progress.json").write_text(json.dumps(state), encoding="utf-8")
        (partial / COMPLETE).touch()
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    if world_size > 1:
        dist.barrier()


def _check_space(directory: Path, weights: list[tuple[str, Tensor]]) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    needed = 4 * sum(w.numel() * w.element_size() for _, w in weights) + (1 << 20)
    free = shutil.disk_usage(directory.parent).free
    if free < needed:
        raise CheckpointError(
            f"{directory}: {free >> 20} MiB free, a checkpoint takes about {needed >> 20} MiB; "
            "free some space or set checkpoint.keep_last lower, then --resume"
        )


def save_model(
    directory: Path, model: PreTrainedModel, weights: list[tuple[str, Tensor]], tokenizer: PreTrainedTokenizerBase
) -> None:
    """A Hugging Face directory that anybody can load."""
    attention = model.config._attn_implementation
    model.config._attn_implementation = "sdpa"  # ours means nothing to whoever loads this
    try:
        state = {name: weight.contiguous() for name, weight in weights}
        model.save_pretrained(directory, state_dict=state)
    finally:
        model.config._attn_implementation = attention
    tokenizer.save_pretrained(directory)


def _save_optimizer(directory: Path, learner: Learner) -> None:
    state = {f"{k}": get_optimizer_state_dict(learner.model, o) for k, o in enumerate(learner.optimizers.optimizers)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is meant
        dcp.save(state, checkpoint_id=str(directory), no_dist=learner.world_size == 1)


def load_optimizer(directory: Path, learner: Learner) -> None:
    """Continue the optimizer state and schedule of a checkpoint; every rank calls it."""
    state = {f"{k}": get_optimizer_state_dict(learner.model, o) for k, o in enumerate(learner.optimizers.optimizers)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(state, checkpoint_id=str(directory / "state" / "optimizer"), no_dist=learner.world_size == 1)
    for k, optimizer in enumerate(learner.optimizers.optimizers):
        set_optimizer_state_dict(learner.model, optimizer, state[f"{k}"])
    saved = json.loads((directory / "state" / "progress.json").read_text(encoding="utf-8"))
    learner.optimizers.load_schedule_state(saved["schedule"])


def load_progress(directory: Path) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((directory / "state" / "progress.json").read_text(encoding="utf-8"))
    progress: dict[str, Any] = saved["progress"]
    return progress


def prune(run_dir: Path, keep_last: int, *, always: int = 0) -> None:
    """Delete all complete checkpoints but the newest `keep_last` and step `always`."""
    found = sorted(
        (p for p in (run_dir / "checkpoints").glob("step_*") if (p / COMPLETE).is_file()),
        key=lambda p: int(p.name.removeprefix("step_")),
    )
    for path in found[:-keep_last]:
        if path.name != f"step_{always}":
            (path / COMPLETE).unlink()  # first, so that a half-deleted directory is no checkpoint
            shutil.rmtree(path)


def set_threads(threads: int) -> None:
    if threads:
        torch.set_num_threads(threads)
