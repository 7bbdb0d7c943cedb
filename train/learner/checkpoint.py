"""Checkpoints (contract 10): `step_N/` is a Hugging Face directory, `step_N/state/` has the state for a
resume.

    snapshot: copy to CPU memory -> training continues
    write step_N.partial/: state/, model, tokenizer -> COMPLETE -> rename to step_N/      (in a thread)

A directory without COMPLETE, or with the name .partial, is ignored. A failed save removes its files; a killed
one leaves a .partial, which the next `prune` removes.
"""

import copy
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.conversion_mapping import get_model_conversion_mapping

from rocstar.engine.inference.weights import let_readers_in
from rocstar.engine.progress.progress import format_bytes
from rocstar.train.learner.adapters import FOLDER as ADAPTER
from rocstar.train.learner.adapters import Adapters
from rocstar.train.learner.gather import SINGLE, files_of, gathered, planned, whole_buckets, write_index
from rocstar.train.learner.learner import Learner
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import COMPLETE as COMPLETE
from rocstar.train.record.run_directory import complete_checkpoints, step_of

ONE_FILE = 1 << 50
"""Bytes of a file of weights at most: it is not parted further."""


OTHER = "other-"
"""Begins the names of other ranks' files until rank 0 has written: `save_pretrained` removes what looks like
a model's file of before."""


class CheckpointError(ConfigError):
    """A checkpoint could not be written or read: path, reason, fix."""


def step_directory(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"step_{step}"


def latest(run_dir: Path, *, before: int | None = None) -> Path | None:
    """The complete checkpoint with the highest step (below `before`), or None."""
    found = [path for path in complete_checkpoints(run_dir) if before is None or step_of(path) < before]
    return found[-1] if found else None


def full_weights(
    model: PreTrainedModel, dtype: torch.dtype | None = None, *, keeps: bool = True
) -> list[tuple[str, Tensor]]:
    """Every weight whole, in `dtype` or its own; a collective under FSDP. A tied one appears once.

    Parts are rounded before they travel. Without `keeps` this rank only gives its parts, and gets no list.
    """
    return [pair for bucket in whole_buckets(model, dtype, keeps=keeps) for pair in bucket]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything of a checkpoint, copied to CPU memory: training goes on and changes none of it."""

    shell: PreTrainedModel
    """The model's class and configuration; its weights are not these."""
    weights: list[tuple[str, Tensor]]
    """Unsharded: those that this rank writes."""
    files: dict[str, str]
    """The file of every weight."""
    adapters: Adapters | None
    """The trained weights, if not all are trained; `weights` contain them merged."""
    optimizer: dict[str, Any] | None
    """This rank's shards; None before the first step, for torch would step once to make a state."""
    schedule: list[dict[str, Any]]
    progress: dict[str, Any]
    tokenizer_files: Mapping[str, bytes]


def snapshot(
    learner: Learner, progress: dict[str, Any], tokenizer_files: Mapping[str, bytes], *, rank: int = 0
) -> Snapshot:
    """Copy the contents of a checkpoint; a collective under FSDP, one parameter at a time.

    A large model is split over files and ranks by gather.py: no rank has all of it in memory.
    """
    any_model: Any = learner.model  # transformers has no types for it
    renamed = getattr(any_model, "_weight_conversions", None)
    if renamed is None:
        renamed = get_model_conversion_mapping(any_model, add_legacy=False)
    # Only where `save_pretrained` writes every parameter under its own name and as it is.
    ranks = 1 if renamed else learner.world_size
    plan = planned(learner.model, ranks)
    weights = [(name, weight.to("cpu", copy=True)) for name, weight in gathered(plan, rank)]
    return Snapshot(
        shell=_shell(learner.model),
        weights=weights,
        files=files_of(plan),
        adapters=Adapters.of(learner.model),
        optimizer=_optimizer_copy(learner),
        schedule=learner.optimizers.schedule_state(),
        progress=progress,
        tokenizer_files=tokenizer_files,
    )


def _shell(model: PreTrainedModel) -> PreTrainedModel:
    """The same modules under a configuration of its own, which `save_pretrained` may change."""
    shell: PreTrainedModel = object.__new__(type(model))  # FSDP's classes make another when they are called
    shell.__dict__.update(model.__dict__)
    shell.config = copy.deepcopy(model.config)
    shell.config._attn_implementation = "sdpa"  # our value has no meaning for other readers
    return shell


def _optimizer_copy(learner: Learner) -> dict[str, Any] | None:
    optimizers = learner.optimizers.optimizers
    if any(not o.state for o in optimizers):
        return None
    state = {f"{k}": get_optimizer_state_dict(learner.model, o) for k, o in enumerate(optimizers)}
    plain = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
    )
    copied: Any = DefaultStager(plain).stage(state)
    result: dict[str, Any] = copied
    return result


def write(directory: Path, snap: Snapshot, *, rank: int = 0, group: Any = None) -> None:
    """Write a checkpoint; every rank calls it. The directory appears complete or not at all.

    `group` is a process group of the writers' own, for they run beside the learner's collectives; None with
    one process.

    Raises:
        CheckpointError: the disk is full now; see `check_space` for before.
    """
    partial = directory.with_name(directory.name + ".partial")
    try:
        if rank == 0:
            directory.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
            (partial / "state").mkdir(parents=True)
        if group is not None:
            dist.barrier(group=group)
            _save_others_weights(partial, snap, rank, group)
        _save_optimizer(partial / "state" / "optimizer", snap, group)
        if rank == 0:  # all ranks have written: the save of the optimizer ends with all of them
            _save_rest(partial, snap)
            shutil.rmtree(directory, ignore_errors=True)
            partial.rename(directory)
            _flush(directory.parent)
    except BaseException as error:  # stopped, too: a half-written folder takes the room of the next
        lack = _lack_of_space(directory, snap.shell) if rank == 0 else None
        if rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        # torch and safetensors wrap a failed write in errors of their own, some without the system's reason.
        if lack and isinstance(error, OSError | RuntimeError | SafetensorError | CheckpointException):
            raise CheckpointError(lack) from error
        if isinstance(error, SafetensorError):  # a limit of this user's, or a disk that fails
            raise CheckpointError(
                f"{str(directory)!r} could not be written: {error}; mend that, then go on with --resume"
            ) from error
        raise


def _save_others_weights(partial: Path, snap: Snapshot, rank: int, group: Any) -> None:
    """Write the files of ranks other than 0. Raise CheckpointError on every rank if one failed."""
    problem = None
    if rank and snap.weights:
        tensors = {name: weight.contiguous() for name, weight in snap.weights}
        try:
            name = OTHER + snap.files[snap.weights[0][0]]
            save_file(tensors, partial / name, metadata={"format": "pt"})
        except (OSError, SafetensorError) as error:
            problem = f"rank {rank}: {error}"
    problems: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(problems, problem, group=group)
    if told := "; ".join(problem for problem in problems if problem):
        raise CheckpointError(f"a part of the weights could not be written to {str(partial)!r}: {told}")


def _save_own_weights(partial: Path, snap: Snapshot) -> None:
    """Write rank 0's files, and the index of the others."""
    snap.shell.save_pretrained(
        partial, state_dict={name: w.contiguous() for name, w in snap.weights}, max_shard_size=ONE_FILE
    )
    own = snap.files[snap.weights[0][0]]
    if own != SINGLE:
        for path in partial.glob(OTHER + "*"):
            path.rename(partial / path.name.removeprefix(OTHER))
        (partial / SINGLE).rename(partial / own)
        num_bytes = sum(p.numel() * p.element_size() for p in snap.shell.parameters())
        write_index(partial, snap.files, num_bytes)


def _save_rest(partial: Path, snap: Snapshot) -> None:
    _save_own_weights(partial, snap)
    for name, content in snap.tokenizer_files.items():
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).write_bytes(content)
    if snap.adapters is not None:
        snap.adapters.save(partial / ADAPTER)
    state = {"schedule": snap.schedule, "progress": snap.progress}
    (partial / "state" / "progress.json").write_text(json.dumps(state), encoding="utf-8")
    let_readers_in(partial)
    for path in partial.rglob("*"):
        _flush(path)
    (partial / COMPLETE).touch()
    _flush(partial)


def _flush(path: Path) -> None:
    """Wait until a file is on the disk: COMPLETE must outlive a power cut only with all it vouches for."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_space(directory: Path, model: PreTrainedModel) -> None:
    """Raise CheckpointError where a checkpoint of the model has no room; nothing is written."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    if lack := _lack_of_space(directory, model):
        raise CheckpointError(lack)


def checkpoint_bytes(parameters: int, adapters: int = 0, dtype_bytes: int = 4) -> int:
    """Estimate a checkpoint's size in bytes: float32 weights, moments of twice their size, and the rest.

    With adapter parameters only these have moments, and the others take `dtype_bytes` each.
    """
    held = dtype_bytes * parameters + 16 * adapters if adapters else 16 * parameters
    return held + (1 << 20)


def _lack_of_space(directory: Path, model: PreTrainedModel) -> str | None:
    """Return the message for a disk without space for weights, moments and the rest; None if there is
    enough."""
    each = ((4 if p.requires_grad else 1) * p.numel() * p.element_size() for p in model.parameters())
    needed = sum(each) + (1 << 20)
    free = shutil.disk_usage(directory.parent).free
    if free >= needed:
        return None
    return (
        f"the disk of {str(directory)!r} is full: {format_bytes(free)} free, a checkpoint takes about "
        f"{format_bytes(needed)}; free some space or lower checkpoint.keep_last, then go on with --resume"
    )


def save_model(
    directory: Path, model: PreTrainedModel, weights: list[tuple[str, Tensor]], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Write a standard Hugging Face directory."""
    _shell(model).save_pretrained(directory, state_dict={name: w.contiguous() for name, w in weights})
    tokenizer.save_pretrained(directory)
    let_readers_in(directory)


def save_shell(directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """All of a Hugging Face directory but the weights."""
    save_model(directory, model, [], tokenizer)
    (directory / SINGLE).unlink(missing_ok=True)


def tokenizer_files(tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    """Return the files of the tokenizer's `save_pretrained`. Read once: a thread must not share the
    tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        root = Path(folder)
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def _save_optimizer(directory: Path, snap: Snapshot, group: Any) -> None:
    if snap.optimizer is None:
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is meant
        dcp_save(snap.optimizer, checkpoint_id=str(directory), process_group=group, no_dist=group is None)


def load_optimizer(directory: Path, learner: Learner) -> None:
    """Continue the moments and the schedule of a checkpoint; every rank calls it, after a fresh `use`.

    Parameter groups and their settings are those of `use`: checkpoints of before norms and embeddings were
    without decay have one group.
    """
    path, optimizers = directory / "state" / "optimizer", learner.optimizers.optimizers
    if path.is_dir():
        fresh = [get_optimizer_state_dict(learner.model, o) for o in optimizers]
        state = {f"{k}": {"state": one["state"]} for k, one in enumerate(fresh)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp_load(state, checkpoint_id=str(path), no_dist=learner.world_size == 1)
        for k, optimizer in enumerate(optimizers):
            set_optimizer_state_dict(learner.model, optimizer, {**fresh[k], **state[f"{k}"]})
    learner.optimizers.load_schedule_state(_read_state(directory, "schedule"))


def _read_state(directory: Path, name: str) -> Any:
    """One entry of progress.json. ConfigError for a file that is damaged."""
    path = directory / "state" / "progress.json"
    try:
        return json.loads(path.read_bytes())[name]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise _damaged(directory, f"{type(error).__name__}: {error}") from None


def _damaged(directory: Path, why: str) -> ConfigError:
    path = str(directory / "state" / "progress.json")
    return ConfigError(f"{path!r} is damaged: {why}; go on from an earlier checkpoint")


def load_progress(directory: Path) -> dict[str, Any]:
    """Return the stored `Snapshot.progress`. Raise ConfigError for a damaged file."""
    progress: Any = _read_state(directory, "progress")
    if not isinstance(progress, dict):
        raise _damaged(directory, "its progress is no object")
    names = ("step", "metrics_bytes", "version", "first_step", "sft_step")
    numbers = [progress[name] for name in names if name in progress]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise _damaged(directory, "a step is no number")
    return progress


def prune(run_dir: Path, keep_last: int, *, keep_every: int = 0, always: int = 0) -> None:
    """Delete complete checkpoints and all partial ones.

    Kept are the newest `keep_last`, those whose step is a multiple of `keep_every` (0: none), and `always`.
    """
    for path in complete_checkpoints(run_dir)[:-keep_last]:
        step = step_of(path)
        if step != always and not (keep_every and step % keep_every == 0):
            (path / COMPLETE).unlink()  # first, so that a half-deleted directory is no checkpoint
            shutil.rmtree(path)
    for path in (run_dir / "checkpoints").glob("step_*.partial"):
        shutil.rmtree(path)


def set_threads(threads: int) -> None:
    if threads:
        torch.set_num_threads(threads)


def source_kind(*, live: bool) -> str:
    """How a run gets its groups, as its checkpoints say it."""
    return "live" if live else "records"
