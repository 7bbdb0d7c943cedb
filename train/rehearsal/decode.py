"""The embedded engine on the GPU that is not there: prompts, siblings that copy one, steps, new weights, and
then the rows of the plan at their longest.

Its forwards are called as the device thread calls them; no event loop is there to answer.
"""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from transformers import PreTrainedModel

from rocstar.engine.inference.embedded.rows import DecodeRequest
from rocstar.engine.inference.embedded.sampling import noise, sample
from rocstar.engine.inference.weights import LiveWeights
from rocstar.train.learner import checkpoint
from rocstar.train.recipe.config import Recipe
from rocstar.train.rehearsal.fake_gpu import FakeGpu
from rocstar.train.rehearsal.memory_tracker import Category, EngineMemory
from rocstar.train.serving.embedded import engine_of, planned_rows

PROMPT = 24
STEPS = 3


def decode(gpu: FakeGpu, recipe: Recipe, model: PreTrainedModel, *, own_weights: bool = True) -> EngineMemory:
    """Decode on `gpu` as an act of its tracker; return the memory of the engines. Raises as `FakeGpu` does.

    Args:
        gpu: the simulated GPU.
        recipe: gives the rows of the plan; without stages 1 row of a short text.
        model: without weights, in the type that it decodes in.
        own_weights: True if the engines hold a copy of the weights.
    """
    gpu.give_memory(model)
    model.requires_grad_(False)
    rows, tokens = planned_rows(recipe) if recipe.stages else (1, 0)
    tokens = min(max(tokens, PROMPT + STEPS), model.config.max_position_embeddings)
    with (
        gpu.tracker.act("decode"),
        gpu.tracker.scope(Category.engine),
        ThreadPoolExecutor(1) as thread,
        torch.no_grad(),
    ):
        if own_weights:
            gpu.tracker.file(model.parameters(), Category.engine)
        else:
            for parameter in model.parameters():
                gpu.tracker.resized(parameter.untyped_storage(), 0)  # the learner's are booked already
        weights = gpu.tracker.held[Category.engine]
        engine: Any = engine_of(recipe, model, thread, beside_learner=True)
        engine._make_room(rows, tokens)  # at once: it is there whenever something else is
        kv, others = engine._kv.held_bytes, recipe.engine.num_replicas - 1
        beside = torch.empty(others * kv, dtype=torch.uint8, device=gpu.device)
        _decode_some(engine, recipe, tokens)
        engine._load_weights(1, LiveWeights(checkpoint.full_weights(model)))
        positions_N = [tokens - 1] * rows  # then a step of all rows at their longest
        positions_T, plan = engine._kv.plan(positions_N, [], range(rows))
        logits_NV = engine._forward(torch.ones_like(positions_T), positions_T, plan, rows)
        sample(logits_NV, [recipe.rl.temperature] * rows, noise(range(rows), positions_N))
    held = gpu.tracker.peaks[-1].by_category[Category.engine]
    kv += beside.nbytes
    return EngineMemory(weights=weights, kv=kv, workspace=held - weights - kv, rows=rows, tokens=tokens)


def _decode_some(engine: Any, recipe: Recipe, tokens: int) -> None:
    """Two siblings, and as many rows of the longest text as fill a forward of prompts; then a few steps."""
    loop = asyncio.new_event_loop()
    try:
        longest = [tokens - STEPS] * math.ceil(engine._prefill_tokens / tokens)
        for number, length in enumerate((PROMPT, PROMPT, *longest)):
            engine._inbox.append(
                DecodeRequest(
                    row_id=str(number),
                    ids=[max(number, 1)] * length,
                    max_new_tokens=STEPS,
                    stop_ids=frozenset(),
                    temperature=recipe.rl.temperature,
                    seed=number,
                    future=asyncio.Future(loop=loop),
                )
            )
        # As `EmbeddedEngine` does in its thread, but not in inference mode, which knows no fake tensors.
        while engine._inbox or engine._waiting or engine._slots.num_active:
            engine._read_inbox()
            engine._admit()
            if engine._slots.num_active:
                engine._inbox.extend(("release", request.row_id) for request, _ in engine._step())
    finally:
        loop.close()
