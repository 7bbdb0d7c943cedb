"""Checkpoints (contract 10): `step_N/` is a Hugging Face directory, `step_N/state/` is what resuming needs.

    write step_N.partial/ -> model, tokenizer, state/ -> COMPLETE -> rename to step_N/

A directory without COMPLETE, or still named .partial, does not exist for anybody. A save that fails leaves
no trace; one that was killed leaves a .partial, which the next `prune` removes.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rocstar.train.config import ConfigError
from rocstar.train.learner import Learner

COMPLETE = "COMPLETE"


class CheckpointError(ConfigError):
    """A checkpoint could not be written or read: path, reason, fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What goes into a checkpoint beside the model: the tokenizer, and the progress as JSON."""

    tokenizer: PreTrainedTokenizerBase
    progress: dict[str, Any]


def step_directory(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"step_{step}"


def latest(run_dir: Path, *, before: int | None = None) -> Path | None:
    """The complete checkpoint with the highest step (below `before`), or None."""
    found = [path for path in _complete(run_dir) if before is None or _step_of(path) < before]
    return found[-1] if found else None


def _step_of(path: Path) -> int:
    return int(path.name[len("step_") :])


def _complete(run_dir: Path) -> list[Path]:
    """All complete checkpoints by step."""
    named = [p for p in (run_dir / "checkpoints").glob("step_*") if re.fullmatch(r"step_[0-9]+", p.name)]
    return sorted((p for p in named if (p / COMPLETE).is_file()), key=_step_of)


def full_weights(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """Every parameter unsharded; a collective under FSDP. A tied parameter appears once."""
    weights = []
    for name, parameter in model.named_parameters():
        full = getattr(parameter, "full_tensor", None)
        weights.append((name, (full() if full else parameter).detach()))
    return weights


def save(directory: Path, learner: Learner, extras: Extras, rank: int, world_size: int) -> None:
    """Write a checkpoint; every rank calls it. The directory appears complete or not at all.

    Raises:
        CheckpointError: no space is left.
    """
    partial = directory.with_name(directory.name + ".partial")
    weights = full_weights(learner.model)
    try:
        if rank == 0:
            _check_space(directory, weights)
            shutil.rmtree(partial, ignore_errors=True)
            (partial / "state").mkdir(parents=True)
        if world_size > 1:
            dist.barrier()
        _save_optimizer(partial / "state" / "optimizer", learner)
        if rank == 0:
            _save_rest(partial, learner, weights, extras)
            shutil.rmtree(directory, ignore_errors=True)
            partial.rename(directory)
        if world_size > 1:
            dist.barrier()
    except BaseException as error:
        lack = _lack_of_space(directory, weights) if rank == 0 else None
        if rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        # torch and safetensors wrap a failed write in errors of their own, some without the system's reason.
        if lack and isinstance(error, OSError | RuntimeError | SafetensorError | CheckpointException):
            raise CheckpointError(lack) from error
        raise


def _save_rest(partial: Path, learner: Learner, weights: list[tuple[str, Tensor]], extras: Extras) -> None:
    save_model(partial, learner.model, weights, extras.tokenizer)
    state = {"schedule": learner.optimizers.schedule_state(), "progress": extras.progress}
    (partial / "state" / "progress.json").write_text(json.dumps(state), encoding="utf-8")
    (partial / COMPLETE).touch()


def _check_space(directory: Path, weights: list[tuple[str, Tensor]]) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    if lack := _lack_of_space(directory, weights):
        raise CheckpointError(lack)


def _lack_of_space(directory: Path, weights: list[tuple[str, Tensor]]) -> str | None:
    """What to tell the user if there is no room for the weights, twice their size of moments, and a rest."""
    needed = 4 * sum(w.numel() * w.element_size() for _, w in weights) + (1 << 20)
    free = shutil.disk_usage(directory.parent).free
    if free >= needed:
        return None
    return (
        f"the disk of {str(directory)!r} is full: {free / 1e6:.1f} MB free, a checkpoint takes about "
        f"{needed / 1e6:.1f} MB; free some space or lower checkpoint.keep_last, then go on with --resume"
    )


def save_model(
    directory: Path,
    model: PreTrainedModel,
    weights: list[tuple[str, Tensor]],
    tokenizer: PreTrainedTokenizerBase,
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
    """Nothing is written before the first step: torch would step once to make a state, and so change it."""
    optimizers = learner.optimizers.optimizers
    if any(not o.state for o in optimizers):
        return
    state = {f"{k}": get_optimizer_state_dict(learner.model, o) for k, o in enumerate(optimizers)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is meant
        dcp_save(state, checkpoint_id=str(directory), no_dist=learner.world_size == 1)


def load_optimizer(directory: Path, learner: Learner) -> None:
    """Continue the optimizer state and schedule of a checkpoint; every rank calls it, after a fresh `use`."""
    path, optimizers = directory / "state" / "optimizer", learner.optimizers.optimizers
    if path.is_dir():
        state = {f"{k}": get_optimizer_state_dict(learner.model, o) for k, o in enumerate(optimizers)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp_load(state, checkpoint_id=str(path), no_dist=learner.world_size == 1)
        for k, optimizer in enumerate(optimizers):
            set_optimizer_state_dict(learner.model, optimizer, state[f"{k}"])
    learner.optimizers.load_schedule_state(_read_state(directory)["schedule"])


def _read_state(directory: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((directory / "state" / "progress.json").read_text(encoding="utf-8"))
    return state


def load_progress(directory: Path) -> dict[str, Any]:
    """What `Extras.progress` was."""
    progress: dict[str, Any] = _read_state(directory)["progress"]
    return progress


def prune(run_dir: Path, keep_last: int, *, always: int = 0) -> None:
    """Delete all complete checkpoints but the newest `keep_last` and step `always`, and all partial ones."""
    for path in _complete(run_dir)[:-keep_last]:
        if path.name != f"step_{always}":
            (path / COMPLETE).unlink()  # first, so that a half-deleted directory is no checkpoint
            shutil.rmtree(path)
    for path in (run_dir / "checkpoints").glob("step_*.partial"):
        shutil.rmtree(path)


def set_threads(threads: int) -> None:
    if threads:
        torch.set_num_threads(threads)
