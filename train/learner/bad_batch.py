"""Write the batch of a step with a non-finite loss or gradient, for diagnosis.

    bad_batch/NAME.json          each microbatch by itself: trajectories, loss, gradient norm
    bad_batch/NAME.safetensors   K.ids, K.weights, K.logprobs, ...: the tensors of microbatch K

A batch with a NaN input has no losses, gradient norms and log-probs: null. If no weight was changed, the last
checkpoint reproduces the error with this batch.
"""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rocstar.engine.inference.weights import let_readers_in
from rocstar.train.learner.learner import BadMicroBatch, NonFiniteGradientError
from rocstar.train.recipe.errors import TrainingStopped


@contextlib.contextmanager
def stops_run(run_dir: Path, name: str) -> Iterator[None]:
    """End the run with one message where a step inside was stopped; `name` is that of the files."""
    try:
        yield
    except NonFiniteGradientError as error:
        path = dump(run_dir, name, error)
        raise TrainingStopped(
            f"{name}: {error}; its microbatches, their losses and gradient norms are in {path}. If some of "
            "them are bad, look at their trajectories; if all are, at the weights, the learning rate and "
            "model.dtype. The last checkpoint is whole: go on with --resume"
        ) from None


def dump(run_dir: Path, name: str, error: NonFiniteGradientError) -> Path:
    """Write both files of a stopped step; returns the path of the one to read first."""
    folder = run_dir / "bad_batch"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    tensors = {f"{k}.{key}": t for k, part in enumerate(error.parts) for key, t in _tensors(part).items()}
    save_file(tensors, folder / f"{name}.safetensors")
    let_readers_in(folder)
    content = {"error": str(error), "microbatches": [_json_row(part) for part in error.parts]}
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def _tensors(part: BadMicroBatch) -> dict[str, Tensor]:
    """Names as in `MicroBatch`, without their letters."""
    micro = part.micro
    found = {
        "ids": micro.ids_I,
        "positions": micro.positions_I,
        "lengths": torch.tensor(micro.lengths_S),
        "shared": torch.tensor(micro.shared_S),
        "rows": micro.rows_T,
        "targets": micro.targets_T,
        "weights": micro.weights_T,
        "advantages": micro.advantages_T,
        "rollout_logprobs": micro.rollout_logprobs_T,
        "logprobs": part.logprobs_T,
        "old_logprobs": micro.old_logprobs_T,
    }
    return {name: tensor.contiguous() for name, tensor in found.items() if tensor is not None}


def _json_row(part: BadMicroBatch) -> dict[str, Any]:
    return {
        "trajectories": part.micro.names_S,
        "tokens": len(part.micro.ids_I),
        "loss_tokens": part.micro.num_loss_tokens,
        "loss": _number(part.loss),
        "grad_norm": _number(part.grad_norm),
        "logprobs_not_finite": _not_finite(part.logprobs_T),
        "advantages_not_finite": _not_finite(part.micro.advantages_T),
        "rollout_logprobs_not_finite": _not_finite(part.micro.rollout_logprobs_T),
    }


def _not_finite(tensor: Tensor | None) -> int | None:
    return None if tensor is None else int((~tensor.isfinite()).sum())


def _number(value: float | None) -> float | str | None:
    """JSON has no NaN."""
    return value if value is None or math.isfinite(value) else str(value)
