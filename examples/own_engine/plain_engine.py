"""A custom engine: plain Hugging Face, one turn after the other, with a copy of the weights.

    engine.kind = "plain_engine:Plain"      in a recipe beside this file

It is slow and short. The interface of an engine: token ids in; ids, their log-probs and the version of the
weights out.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rocstar.engine.inference.base import (
    Generation,
    Inference,
    InferenceError,
    KvLoad,
    RolloutEngine,
    Sampling,
    StopReason,
)
from rocstar.engine.inference.weights import WeightSource
from rocstar.train.recipe.config import Recipe
from rocstar.train.serving.backend import CopyPublisher, EngineBackend, Learning, Opened


class PlainEngine(Inference):
    """One turn at a time, in a thread of its own; `abort`, `join` and `release` have nothing to do."""

    def __init__(self, model: Any, thread: ThreadPoolExecutor) -> None:
        self._model, self._thread = model.eval(), thread
        # transformers 5.24 renamed the argument of past keys and values.
        arguments = inspect.signature(model.forward).parameters
        self._past_name = "cache" if "cache" in arguments else "past_key_values"
        self._waiting = 0
        self.version, self.busy_s, self.starved_s = 0, 0.0, 0.0

    async def generate(
        self,
        ids: list[int],
        *,
        max_new_tokens: int,
        stop_ids: frozenset[int],
        sampling: Sampling,
        seed: int,
        request_id: str,
        deadline: float | None,
    ) -> Generation:
        if len(ids) + max_new_tokens > self._model.config.max_position_embeddings:
            raise InferenceError("too_long", f"{len(ids)} + {max_new_tokens} tokens", retryable=False)
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._write, ids, max_new_tokens, stop_ids, sampling.temperature, seed
                )
        finally:
            self._waiting -= 1

    def _write(
        self, ids: list[int], max_new_tokens: int, stop_ids: frozenset[int], temperature: float, seed: int
    ) -> Generation:
        """A whole turn, in the thread: no publish comes in between, so all of it is of one version."""
        begun, new, logprobs = time.perf_counter(), list[int](), list[float]()
        noise, past, context = torch.Generator(), None, torch.tensor([ids])
        with torch.inference_mode():
            while len(new) < max_new_tokens and not (new and new[-1] in stop_ids):
                out = self._model(context, use_cache=True, **{self._past_name: past})
                past, logits = out.past_key_values, out.logits[0, -1].float()
                chances = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
                # The noise of a token follows from (seed, position), whatever else the engine does.
                noise.manual_seed((seed + len(ids) + len(new)) % (1 << 63))
                drawn = torch.multinomial(chances.exp(), 1, generator=noise)
                token = int(drawn) if temperature else int(logits.argmax())
                new.append(token)
                logprobs.append(float(chances[token]))
                context = torch.tensor([[token]])
        self.busy_s += time.perf_counter() - begun
        return Generation(
            ids=tuple(new),
            logprobs=tuple(logprobs),
            version_spans=((0, len(new), self.version),),
            finish=StopReason.stop if new[-1] in stop_ids else StopReason.length,
            cached_tokens=0,
        )

    def load(self) -> KvLoad:
        running = min(1, self._waiting)
        return KvLoad(total=1 << 20, used=0, running=running, waiting=self._waiting - running)

    async def publish(self, version: int, source: WeightSource | None = None) -> None:
        """Copy the learner's weights, between two turns."""
        assert source is not None, "this engine shares no weights with the learner"
        await asyncio.get_running_loop().run_in_executor(self._thread, self._take, version, source)

    def _take(self, version: int, source: WeightSource) -> None:
        weights = {name: source.tensor(name) for name in source.shapes()}
        self._model.load_state_dict(weights, strict=False)  # a tied head is there under one name
        self.version = version


class Plain(EngineBackend):
    """The class that `engine.kind` names."""

    learns = True

    @contextlib.asynccontextmanager
    async def open(self, recipe: Recipe, path: str, thread: ThreadPoolExecutor) -> AsyncIterator[RolloutEngine]:
        """Open a fixed model on disk, for `rocstar eval` and `rocstar rollout`."""
        yield PlainEngine(AutoModelForCausalLM.from_pretrained(path), thread)

    @contextlib.asynccontextmanager
    async def open_learning(self, recipe: Recipe, learning: Learning) -> AsyncIterator[Opened]:
        """Open a copy of the policy for `rocstar train`; it gets the learner's weights after every update."""
        with ThreadPoolExecutor(1, thread_name_prefix="engine") as thread:
            make: Any = AutoModelForCausalLM  # transformers has no types for it
            model = make.from_config(learning.origin.model.config, attn_implementation="sdpa")
            engine = PlainEngine(model, thread)
            await engine.publish(0, await learning.weights())
            yield Opened(engine=engine, publisher=CopyPublisher(engine, learning))
