"""The bytes of a learner, counted operation by operation on a CPU: activations, gathers, loads.

    python benchmarks/learner_memory.py --out benchmarks/results/learner_memory.json

Every tensor that an operation makes is counted while its storage lives (a mode of torch's dispatcher), so the
figures are of tensors and not of an allocator. The model is Qwen3-14B's layer with every width exactly an
eighth, in bfloat16 through FSDP; bytes per token and layer are differences of models with 5 and 3 layers and
of two lengths, times eight. The other ranks are a process group that hears nothing (torch's "fake" one).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from sandbox_bench.report import bar, finish
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config, Qwen3ForCausalLM

from rocstar.train.learner import checkpoint, gather, packed_attention, packed_layers
from rocstar.train.learner.activations import kept_bytes
from rocstar.train.learner.batch import MicroBatch, pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.gather import planned
from rocstar.train.learner.learner import Learner, LossSettings
from rocstar.train.learner.load_parts import load_learner
from rocstar.train.learner.model_io import load_model
from rocstar.train.learner.packed_attention import PackedAttention
from rocstar.train.learner.team import World, shard
from rocstar.train.learner.weight_file import write_owned
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.model_config import ModelConfig

WHOLE = {"hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 40, "num_key_value_heads": 8}
LAYERS, TOKENS, EIGHTH = 40, 20_480, 8
SETTINGS = LossSettings(temperature=1.0, clip_low=0.2, clip_high=0.28)


class Counted(TorchDispatchMode):
    """Bytes of the storages that operations made and that still live; `peak` is the most at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(given.alias_info for given in func._schema.returns):  # a view of what was there
            return out
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return out

    def _count(self, tensor: Tensor) -> None:
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        if local.is_meta:
            return
        storage = local.untyped_storage()
        if storage in self._seen or storage.filename is not None:  # a file's mapping is nobody's memory
            return
        self._seen.add(storage)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.live -= size


def peak_of(work: Callable[[], Any]) -> int:
    gc.collect()
    with Counted() as counted:
        work()
    return counted.peak


def config(num_layers: int, *, vocabulary: int = 512) -> Qwen3Config:
    sizes = {name: value // EIGHTH for name, value in WHOLE.items()}
    return Qwen3Config(**sizes, num_hidden_layers=num_layers, head_dim=128, vocab_size=vocabulary)


def one_row(num_tokens: int) -> MicroBatch:
    ids = torch.randint(512, (num_tokens + 1,), generator=torch.Generator().manual_seed(0)).numpy()
    mask = [0] * (num_tokens // 4) + [1] * (num_tokens + 1 - num_tokens // 4)
    example = Example(
        ids=ids,
        mask=mask,
        weights=[m / num_tokens for m in mask],
        rollout_logprobs=[-6.0] * len(mask),
        advantage=1.0,
    )
    (micro,) = pack([example], tokens_per_microbatch=num_tokens)
    return micro


# ---- activations ----

Way = Literal["off", "on"]


def kept_by_forward(num_layers: int, num_tokens: int, way: Way) -> int:
    """Bytes alive between forward and backward, that were not there before."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config(num_layers))
    shard(model, World(rank=0, size=1), ModelConfig(dtype="bfloat16", activation_checkpointing=way))
    learner, micro, kept = Learner(model), one_row(num_tokens), 0

    def backward(loss: Tensor) -> None:
        nonlocal kept
        kept = counted.live
        raise StopIteration

    gc.collect()
    with Counted() as counted, mock.patch.object(torch.autograd, "backward", backward):
        with contextlib.suppress(StopIteration):
            learner.policy_backward(micro, None, SETTINGS)
    return kept


def per_token_and_layer(way: Way) -> float:
    """At the widths of the whole: the rest of a layer and of a token cancels."""
    found = {(n, t): kept_by_forward(n, t, way) for n in (3, 5) for t in (128, 256)}
    slope = (found[5, 256] - found[5, 128]) - (found[3, 256] - found[3, 128])
    return EIGHTH * slope / 2 / 128


def models_own_norm(norm: Any, x: Tensor) -> Tensor:
    out: Tensor = norm(x)
    return out


def own_norm_project(norm: Any, x: Tensor, *linears: Any) -> tuple[Tensor, ...]:
    return packed_layers._project(norm(x), *linears)


def activations() -> dict[str, Any]:
    own = {"_normalise": models_own_norm, "_norm_project": own_norm_project}
    with mock.patch.multiple(packed_layers, **own):
        before = per_token_and_layer("off")
    now, checkpointed = per_token_and_layer("off"), per_token_and_layer("on")
    of = Qwen3Config(**WHOLE, num_hidden_layers=LAYERS, head_dim=128)
    told = kept_bytes(of, 2, 1, inputs_alone=False) / LAYERS
    whole = kept_bytes(of, 2, TOKENS, inputs_alone=True)
    return {
        "bytes_per_token_and_layer": {
            "with_the_models_own_norms": round(before),
            "now": round(now),
            "checkpointed": round(checkpointed),
            "by_arithmetic": round(told),
        },
        "gigabytes_of_20480_tokens_in_40_layers": {
            "with_the_models_own_norms": round(before * LAYERS * TOKENS / 1e9, 1),
            "now": round(now * LAYERS * TOKENS / 1e9, 1),
            "checkpointed_and_one_layer_whole": round((checkpointed * LAYERS + now) * TOKENS / 1e9, 1),
            "checkpointed_by_arithmetic": round(whole / 1e9, 1),
        },
    }


# ---- gathers and loads, as rank 0 of eight ----


def gathers() -> dict[str, Any]:
    """Peaks beside a rank's own part, in shares of the whole model in bfloat16."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config(8, vocabulary=4096))
    world, recipe = World(rank=0, size=8, local_size=8), Recipe(model=ModelConfig(dtype="bfloat16"))
    numbers = sum(p.numel() for p in model.parameters())
    largest = max(p.numel() for p in model.parameters())
    half = 2 * numbers
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        if dist.is_initialized():  # a world of one
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())

        def whole() -> None:
            loaded = load_model(folder, "float32")
            shard(loaded, world, recipe.model)

        load_before, load_now = peak_of(whole), peak_of(lambda: load_learner(folder, world, recipe))
        learned: Any = load_learner(folder, world, recipe)

        def as_before() -> None:
            weights = checkpoint.full_weights(learned)
            assert len(weights) > 1

        full_before = peak_of(as_before)
        with mock.patch.object(gather, "FILE_BYTES", half // 8):
            out = Path(folder) / "out"
            out.mkdir()
            plan = planned(learned, 8, torch.bfloat16)
            write_now = peak_of(lambda: write_owned(out, plan, 0))
        dist.destroy_process_group()
    return {
        "model_bytes_in_bfloat16": half,
        "largest_tensor_share": round(2 * largest / half, 3),
        "publish_peak_share": {
            "gathered_in_float32_on_each": round(full_before / half, 3),
            "now": round(write_now / half, 3),
        },
        "load_peak_share": {
            "whole_then_parted": round(load_before / half, 3),
            "now": round(load_now / half, 3),
        },
    }


# ---- the last layer ----


def last_layer(num_tokens: int = 6_144) -> dict[str, Any]:
    """Peak of the attention of the kept tokens: 60% of one long sequence."""
    kept_R = torch.arange(num_tokens)[
        torch.rand(num_tokens, generator=torch.Generator().manual_seed(0)) < 0.6
    ]
    q, k, v = (torch.randn(heads, num_tokens, 16, dtype=torch.bfloat16) for heads in (2, 1, 1))
    q_HRD = q[:, kept_R].clone().requires_grad_()

    def ask() -> None:
        attention = PackedAttention([num_tokens], torch.device("cpu"), kept_R=kept_R)
        attention.attend_kept(q_HRD, k, v, 0.25).sum().backward()

    now = peak_of(ask)
    with mock.patch.object(packed_attention, "MAX_MASK", 1 << 60):
        masked = peak_of(ask)
    return {"tokens": num_tokens, "peak_bytes": {"masked": masked, "now": now}}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {"activations": activations(), "ranks": gathers(), "last_layer": last_layer()}
    for name, part in found.items():
        print(name, part)
    per_token = found["activations"]["bytes_per_token_and_layer"]
    ranks = found["ranks"]
    bars = [
        bar(
            "arithmetic against counted activations",
            round(abs(per_token["by_arithmetic"] / per_token["now"] - 1), 4),
            0.1,
            at_most=True,
        ),
        bar(
            "activations saved by norms whose input alone is kept",
            round(1 - per_token["now"] / per_token["with_the_models_own_norms"], 4),
            0.2,
            at_most=False,
        ),
        bar("model shares at the peak of a publish", ranks["publish_peak_share"]["now"], 0.2, at_most=True),
        bar("model shares at the peak of a load", ranks["load_peak_share"]["now"], 0.5, at_most=True),
    ]
    return finish("learner_memory", found, bars, options.out)


if __name__ == "__main__":
    raise SystemExit(main())
