"""The embedded engine on the GPU that is not there: prompts, siblings that copy one, steps, new weights.

Its forwards are called as the device thread calls them; no event loop is there to answer.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from transformers import PreTrainedModel

from rocstar.engine.inference.embedded.rows import DecodeRequest
from rocstar.engine.inference.weights import LiveWeights
from rocstar.train.learner import checkpoint
from rocstar.train.recipe.config import Recipe
from rocstar.train.rehearsal.cast import give_memory
from rocstar.train.rehearsal.fake_gpu import FakeGpu
from rocstar.train.serving.embedded import engine_of

PROMPT = 24
SLOTS = 4
STEPS = 3


def decode(gpu: FakeGpu, recipe: Recipe, model: PreTrainedModel) -> None:
    """A few tokens of three trajectories, a publish, and a few more. Raises what `FakeGpu` does.

    `model`: without weights, in the type that it decodes in.
    """
    give_memory(model, gpu.weights)
    model.requires_grad_(False)
    small = recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"max_running": SLOTS})})
    loop = asyncio.new_event_loop()
    try:
        with ThreadPoolExecutor(1) as thread:
            engine = engine_of(small, model, thread)
            for number in range(3):
                ids = [1 + min(number, 1)] * PROMPT  # two siblings, and one of another task
                engine._inbox.append(
                    DecodeRequest(
                        row_id=str(number),
                        ids=ids,
                        max_new_tokens=PROMPT,
                        stop_ids=frozenset(),
                        temperature=recipe.rl.temperature,
                        seed=number,
                        future=asyncio.Future(loop=loop),
                    )
                )
            with torch.no_grad():
                _steps(engine)
                engine._load_weights(1, LiveWeights(checkpoint.full_weights(model)))
                _steps(engine)
    finally:
        loop.close()


def _steps(engine: Any) -> None:
    """What `EmbeddedEngine` does in its thread, without inference mode, which knows no fake tensors."""
    for _ in range(STEPS):
        engine._read_inbox()
        engine._admit()
        engine._step()
