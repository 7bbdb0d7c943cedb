"""Decode: multi-turn rollouts of given lengths, by the embedded engine or transformers' continuous batching.

Groups of 8 siblings share a prompt; behind every turn but the last a tool's text is appended. Each side is a
process of its own; all see the same weights, prompts, lengths and tool texts (bench_embedded.py).
"""

from __future__ import annotations

import time
from typing import Any

import bench_embedded as bench
import torch

from rocstar.train.rehearsal.memory_tracker import GIB

from .models import random_model, scratch_of
from .part import Part, dtype_name
from .results import Decode

SIBLINGS = 8
TRAJECTORIES, TOY_TRAJECTORIES = 128, 8
LONGEST, TOY_LONGEST = 2048, 512
CHECKED = 2
"""Trajectories whose log-probs are compared with a plain forward."""
OURS = "rocstar"
PEERS: dict[str, tuple[dict[str, Any], bool]] = {
    "transformers": ({"page_size": 256}, True),
    "transformers small pages": ({"page_size": 32}, True),
    "transformers prefill first": ({"page_size": 256, "scheduler_type": "prefill_first"}, True),
    "transformers no graphs": ({"page_size": 256}, False),
}
"""Setting of each, and whether it captures CUDA graphs."""


def measure(part: Part) -> None:
    result: Decode = part.result
    count = TRAJECTORIES if part.on_device else TOY_TRAJECTORIES
    scratch = scratch_of("0.6B" if part.on_device else "toy")
    result.side, result.dtype = part.which, dtype_name(part.dtype)
    work = scripts(count, scratch.vocab_size, seed=1, is_long=part.on_device)
    result.trajectories = count
    result.tokens = sum(length for script in work for length, _ in script.turns)
    part.save()
    longest = LONGEST if part.on_device else TOY_LONGEST
    model = random_model(scratch, part.device, dtype=part.dtype, longest=longest).eval()
    side: Any
    if part.which == OURS:
        side = bench.Ours(model, count)
    else:
        setting, use_cuda_graph = PEERS[part.which]
        side = bench.Peer(
            model, count, setting,
            use_cuda_graph=use_cuda_graph and part.on_device, timeout_s=max(1.0, part.left() - 5),
        )  # fmt: skip
    began = time.perf_counter()
    side.run(scripts(2 * SIBLINGS, scratch.vocab_size, seed=2, is_long=part.on_device), 1 << 32)
    part.synchronize()
    result.warm_s = time.perf_counter() - began
    part.save()
    _, result.seconds, said = bench.timed(side.run, work, 0)
    result.tokens_per_s = result.tokens / result.seconds
    if part.on_device:
        result.peak_gib = torch.cuda.max_memory_allocated() / GIB
    part.save()
    side.close()
    # Both sides put attention of their own into the model they are given.
    plain = random_model(scratch, part.device, dtype=part.dtype, longest=longest).eval()
    result.logprob_error = bench.largest_error(plain, said, work, CHECKED)
    part.save()


def scripts(count: int, vocabulary: int, *, seed: int, is_long: bool) -> list[bench.Script]:
    """`is_long`: prompts and turns four times as long, two turns at most."""
    made = bench.scripts(count, SIBLINGS, seed, vocabulary=vocabulary)
    if not is_long:
        return [bench.Script(prompt=one.prompt, turns=one.turns[:2]) for one in made]
    return [
        bench.Script(prompt=4 * one.prompt, turns=[(min(4 * length, 400), tool) for length, tool in one.turns[:2]])
        for one in made
    ]
