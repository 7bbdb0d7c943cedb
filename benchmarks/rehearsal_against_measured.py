"""A rehearsal on fake tensors against the same learner on real ones: bytes at the peak of each act.

    python benchmarks/rehearsal_against_measured.py [--out FILE]

Small models on a CPU: SFT and RL step of the recipe's packing, with and without activation checkpointing, in
float32 (one process, no FSDP) and in bfloat16 (FSDP2 over a world of one). A dispatch mode counts
real storages from their making to their end; memory that an op takes and gives back inside is in neither.

The embedded engine too, in bfloat16: weights, KV of the rows of the plan at their longest, and what its
forwards make. A CPU takes the forward that a GPU takes in bfloat16, which is not its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from report import claim, finish, result_parser
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rocstar.engine.inference.embedded import decoder, native
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.engine.inference.embedded.rows import DecodeRequest
from rocstar.train.learner.model_io import model_without_weights, row_cost
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.world import World
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.rehearsal.fake_gpu import HOST, fake_gpu, replace_tensors
from rocstar.train.rehearsal.memory_tracker import MemoryTracker
from rocstar.train.rehearsal.phases import RehearsalLearner, decode, scopes
from rocstar.train.rehearsal.rehearse import batches_of
from rocstar.train.serving.embedded import planned_rows

ALONE = World(rank=0, size=1)
SIZES: dict[str, dict[str, int]] = {
    "wide": {"vocab_size": 2000, "hidden_size": 128, "num_layers": 4, "num_heads": 8, "num_kv_heads": 4},
    "small": {"vocab_size": 500, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2},
    "deep": {"vocab_size": 900, "hidden_size": 96, "num_layers": 8, "num_heads": 6, "num_kv_heads": 3},
}


class RealCpu(TorchDispatchMode):
    """Counts real tensors as they are made, in the place of the `FakeGpu` of a rehearsal."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker, self.host = MemoryTracker(), MemoryTracker()
        self.reads: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and not isinstance(tensor, FakeTensor):
                self.tracker.made(tensor)
        return made

    def give_memory(self, model: nn.Module) -> None:
        """Replace the model's tensors by copies that are counted: the loss must be a number."""
        replace_tensors(model, lambda tensor: tensor.detach().clone())

    def weights(self, like: Tensor) -> Tensor:
        """The model's own numbers, for the loss must be one."""
        return like.detach().clone()


@contextlib.contextmanager
def real_cpu() -> Iterator[RealCpu]:
    """Count the tensors of the learner inside, with storages that FSDP empties and refills."""
    counter, resize = RealCpu(), torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        counter.tracker.resized(storage, size)
        return result

    torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign]
    try:
        with counter:
            yield counter
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
        if dist.is_initialized():
            dist.destroy_process_group()


def recipe_of(size: str, *, dtype: str, checkpointing: bool, tokens: int) -> Recipe:
    """A recipe of SFT and RL on a model of that size."""
    tasks = {"source": "reasoning_gym", "families": {"gcd": {}}, "size": 8}
    return parse_recipe(
        {
            "model": {"scratch": SIZES[size], "dtype": dtype, "activation_checkpointing": checkpointing},
            "sft": {"steps": 1, "optimizer": "adamw", "batch_size": 16, "max_tokens": 300}
            | {"demonstration_tasks": tasks},
            "rl": {"tasks_per_step": 4, "rollouts_per_task": 8, "group_size": 8} | {"tokens_per_microbatch": tokens},
            "stages": [{"steps": 1, "max_response_tokens": 400, "max_turns": 4, "data": tasks}],
        },
        where="benchmark",
    )


def peaks(open_stage: Callable[[], AbstractContextManager[Any]], recipe: Recipe) -> dict[str, int]:
    """Bytes at the peak of an SFT and of an RL step, on real tensors or on fake ones."""
    scratch = recipe.model.scratch
    is_real = open_stage is real_cpu
    model: Any = build_model(scratch, scratch.vocab_size, seed=0) if is_real else model_without_weights(recipe.model)
    _, batches = batches_of(recipe, 1, row_cost(model), model.config.vocab_size)
    with open_stage() as stage, scopes(stage.tracker):
        rehearsed = RehearsalLearner(stage, recipe, model, ALONE)
        rehearsed.sft(batches["sft"].updates[0])
        rehearsed.rl(batches["rl"].updates)
        return {peak.act: peak.total for peak in rehearsed.over().gpu}


def compare(recipe: Recipe) -> dict[str, dict[str, float]]:
    """Bytes of each act: rehearsed, measured, and their ratio."""
    rehearsed = peaks(lambda: fake_gpu(1, HOST), recipe)
    measured = peaks(real_cpu, recipe)
    return {
        act: {"rehearsed": rehearsed[act], "measured": n, "ratio": round(rehearsed[act] / n, 4)}
        for act, n in measured.items()
    }


def engine_measured(recipe: Recipe) -> int:
    """Bytes at the peak of a real engine whose rows, as many as the plan states, grow to their longest."""
    rows, tokens = planned_rows(recipe)
    scratch = recipe.model.scratch
    any_model: Any = build_model(scratch, scratch.vocab_size, seed=0)
    model = any_model.to(torch.bfloat16).requires_grad_(False)
    loop = asyncio.new_event_loop()
    with (
        real_cpu() as stage,
        ThreadPoolExecutor(1) as thread,
        torch.no_grad(),
        mock.patch.object(decoder, "_is_plain", return_value=True),
        mock.patch.object(native, "fits", return_value=False),  # it is of float32
    ):
        for parameter in model.parameters():
            stage.tracker.made(parameter)
        engine: Any = EmbeddedEngine(model, max_running=rows, thread=thread, kv_tokens=rows * tokens)
        for row in range(rows):
            request = DecodeRequest(
                row_id=str(row),
                ids=[1 + row] * (tokens // 2),
                max_new_tokens=tokens - tokens // 2,
                stop_ids=frozenset(),
                temperature=1.0,
                seed=row,
                future=asyncio.Future(loop=loop),
            )
            engine._inbox.append(request)
        with stage.tracker.act("decode"):
            engine._read_inbox()
            while engine._waiting or engine._slots.num_active:
                if engine.version == 0 and engine._slots.longest() >= tokens - 3:
                    engine._load_weights(1, None)  # a publish: the KV of all rows is computed again
                engine._admit()
                engine._step()
        assert not engine.rows_evicted, "the rows of the plan fit together"
    loop.close()
    return stage.tracker.peaks[0].total


def compare_engine(recipe: Recipe) -> dict[str, float]:
    """Bytes of the engine: rehearsed, measured, and their ratio."""
    any_model: Any = model_without_weights(recipe.model)
    model = any_model.to(torch.bfloat16)
    with fake_gpu(1) as gpu:
        rehearsed = decode(gpu, recipe, model).total
    measured = engine_measured(recipe)
    return {"rehearsed": rehearsed, "measured": measured, "ratio": round(rehearsed / measured, 4)}


def main() -> int:
    parser = result_parser(__doc__)
    options = parser.parse_args()
    rows = []
    for size, dtype, checkpointing, tokens in itertools.product(
        ("wide", "deep"), ("float32", "bfloat16"), (False, True), (1024,)
    ):
        recipe = recipe_of(size, dtype=dtype, checkpointing=checkpointing, tokens=tokens)
        for act, found in compare(recipe).items():
            of = {"model": size, "dtype": dtype, "checkpointing": checkpointing, "tokens": tokens, "act": act}
            rows.append(of | found)
            print(rows[-1], flush=True)
    for size in SIZES:
        recipe = recipe_of(size, dtype="bfloat16", checkpointing=False, tokens=1024)
        of = {"model": size, "dtype": "bfloat16", "checkpointing": False, "tokens": 1024, "act": "engine"}
        rows.append(of | compare_engine(recipe))
        print(rows[-1], flush=True)
    worst = max(abs(row["ratio"] - 1) for row in rows)
    claims = [claim("largest distance from 1 of rehearsed over measured memory", worst, at_most=0.1)]
    return finish("rehearsal_against_measured", {"rows": rows}, claims, options.out)


if __name__ == "__main__":
    raise SystemExit(main())
