"""The acts of a rehearsal: the real learner on a simulated GPU, and the memory that each act holds.

    moments ─> sft step ─> [moments] ─> rl step ─> publish ─> checkpoint

An act begins with the memory that the act before leaves: weights and moments exist when a step begins, as in
every step of a run but the first.
"""

import asyncio
import functools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.utils import checkpoint as torch_checkpoint
from transformers import PreTrainedModel

from rocstar.engine.inference.embedded.rows import DecodeRequest
from rocstar.engine.inference.embedded.sampling import noise, sample
from rocstar.engine.inference.weights import LiveWeights
from rocstar.kernels import linear_loss
from rocstar.train.learner import checkpoint
from rocstar.train.learner import learner as learner_module
from rocstar.train.learner.adapters import weights_of
from rocstar.train.learner.batch import MicroBatch, empty_microbatch
from rocstar.train.learner.gather import gathered, planned, whole_buckets
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.model_io import DTYPES, HEAD_DTYPES
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.policy_model import PolicyModel, runs_again
from rocstar.train.learner.settings import cold_start_optimizer, loss_settings, stage_optimizer
from rocstar.train.learner.sharding import shard
from rocstar.train.learner.world import World
from rocstar.train.recipe.config import Recipe
from rocstar.train.rehearsal.fake_gpu import FakeGpu
from rocstar.train.rehearsal.memory_tracker import Category, EngineMemory, MemoryPeak, MemoryTracker
from rocstar.train.serving.embedded import engine_of, planned_rows

Wrapper = Callable[..., Any]


@contextmanager
def scopes(tracker: MemoryTracker) -> Iterator[None]:
    """Run the block with the learner's memory assigned to categories."""

    def within(category: Category, function: Wrapper) -> Wrapper:
        @functools.wraps(function)
        def scoped(*args: Any, **kwargs: Any) -> Any:
            with tracker.scope(category):
                return function(*args, **kwargs)

        return scoped

    def reduced(group: Any, *args: Any, **kwargs: Any) -> Any:
        with tracker.scope(Category.gathers):
            result = post_backward(group, *args, **kwargs)
        shards = [param.sharded_param.grad for param in group.fsdp_params]
        tracker.file([local(grad) for grad in shards if grad is not None], Category.gradients)
        return result

    class Repeated(torch_checkpoint._recomputation_hook):
        """A layer's forward in backward, for activations that were not kept."""

        def __enter__(self) -> Any:
            self._scope = tracker.scope(Category.activations)
            self._scope.__enter__()
            return super().__enter__()

        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            self._scope.__exit__(None, None, None)

    post_backward = FSDPParamGroup.post_backward
    patched: list[tuple[Any, str, Any]] = [
        (FSDPParamGroup, "unshard", within(Category.gathers, FSDPParamGroup.unshard)),
        (FSDPParamGroup, "wait_for_unshard", within(Category.gathers, FSDPParamGroup.wait_for_unshard)),
        (FSDPParamGroup, "post_backward", reduced),
        (PolicyModel, "__call__", within(Category.activations, PolicyModel.__call__)),
        (torch.autograd, "backward", within(Category.temporary, torch.autograd.backward)),
        (torch_checkpoint, "_recomputation_hook", Repeated),
        (linear_loss._LinearLoss, "backward", staticmethod(within(Category.head, linear_loss._LinearLoss.backward))),
    ]
    for name in ("linear_loss", "linear_logprobs"):
        patched.append((learner_module, name, within(Category.head, getattr(learner_module, name))))
    with ExitStack() as stack:
        for owner, name, new in patched:
            stack.enter_context(mock.patch.object(owner, name, new))
        yield


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    part: Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


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


@dataclass(slots=True, kw_only=True)
class RehearsalPhases:
    """The bytes held in each act, and the lines where the host waits for a value from the GPU."""

    gpu: list[MemoryPeak] = field(default_factory=list)
    host: list[MemoryPeak] = field(default_factory=list)
    reads: dict[str, int] = field(default_factory=dict)
    state: int = 0
    """The memory of the learner between steps: weights and moments."""
    runs_again: bool = False
    """Whether layers keep their input alone and are run again in backward."""


class RehearsalLearner:
    """The learner on the simulated GPU. Make it inside `fake_gpu` and `scopes`."""

    def __init__(self, gpu: FakeGpu, recipe: Recipe, model: PreTrainedModel, world: World) -> None:
        self._gpu, self._recipe = gpu, recipe
        with gpu.tracker.scope(Category.parameters):
            gpu.give_memory(model)
            any_model: Any = model
            any_model.to = lambda *_, **__: model  # it is there already, and torch cannot swap fake tensors
            shard(model, world, recipe.model, tokens_per_microbatch=recipe.rl.tokens_per_microbatch)
            if recipe.lora.rank:  # no op has made any of it anew
                for parameter in model.parameters():
                    gpu.tracker.made(parameter)
            del any_model.to
            self._start = [p.detach().clone() for p in model.parameters()] if recipe.rl.start_kl_every else []
            """The start policy of rl.start_kl_every."""
        head_dtype = HEAD_DTYPES[recipe.model.head_dtype]
        self.learner = Learner(model, world_size=world.size, head_dtype=head_dtype)
        for parameter in model.parameters():  # without FSDP autograd hands it its gradient: book it then
            if parameter.requires_grad and not hasattr(parameter, "_local_tensor"):
                any_parameter: Any = parameter  # torch has no types for its hooks
                any_parameter.register_post_accumulate_grad_hook(
                    lambda p: gpu.tracker.file([p.grad] if p.grad is not None else [], Category.gradients)
                )

    def sft(self, micros: Sequence[MicroBatch]) -> None:
        """One step of the cold start."""
        self._use(cold_start_optimizer(self._recipe.sft))
        with self._gpu.tracker.act("sft"), self._gpu.host.act("sft"):
            self.learner.imitation_step(micros)

    def rl(self, updates: Sequence[Sequence[MicroBatch]]) -> None:
        """One step of a stage."""
        self._use(stage_optimizer(self._recipe))
        with self._gpu.tracker.act("rl"), self._gpu.host.act("rl"):
            self.learner.policy_step(updates, loss_settings(self._recipe))

    def publish(self) -> None:
        """The weights in transfer to the engine, as rank 0 holds them at one time."""
        model, engine = self.learner.model, self._recipe.engine
        dtype = DTYPES[self._recipe.model.dtype]
        with self._gpu.tracker.act("publish"), self._gpu.host.act("publish"):
            with self._gpu.tracker.scope(Category.gathers):
                if self._recipe.lora.rank:  # merged one after the other
                    for weight in weights_of(model):
                        weight.whole()
                elif engine.kind != "sglang":
                    checkpoint.full_weights(model, dtype)
                elif engine.publish == "broadcast":  # one bucket is sent while the next is gathered
                    deque(whole_buckets(model, dtype), maxlen=1)
                else:  # files, tensor by tensor
                    deque(gathered(planned(model, self.learner.world_size, dtype), 0), maxlen=0)

    def save(self) -> None:
        """The copy of a checkpoint that the host writes."""
        with self._gpu.tracker.act("checkpoint"), self._gpu.host.act("checkpoint"):
            with self._gpu.tracker.scope(Category.gathers):
                checkpoint.snapshot(self.learner, {}, {}, rank=0)

    def over(self) -> RehearsalPhases:
        """Everything that was seen."""
        tracker = self._gpu.tracker
        state = tracker.held[Category.parameters] + tracker.held[Category.moments]
        if self._recipe.lora.rank and self._recipe.model.offload_moments:
            frozen = [p for p in self.learner.model.parameters() if not p.requires_grad]
            state -= tracker.held[Category.moments] + sum(p.numel() * p.element_size() for p in frozen)
        return RehearsalPhases(
            gpu=tracker.peaks,
            host=self._gpu.host.peaks,
            reads=dict(self._gpu.reads.most_common()),
            state=state,
            runs_again=runs_again(self.learner.model),
        )

    def _use(self, spec: OptimSpec) -> None:
        """A fresh optimizer with its moments, which the first step of a run makes."""
        self.learner.use(spec)
        with self._gpu.tracker.act("moments"), self._gpu.host.act("moments"):
            with self._gpu.tracker.scope(Category.moments):
                self.learner.imitation_step([empty_microbatch()])
            for optimizer in self.learner.optimizers.optimizers:
                for state in optimizer.state.values():
                    kept = (local(x) for x in state.values() if isinstance(x, Tensor))
                    self._gpu.tracker.file(kept, Category.moments)
        self.learner.optimizers.zero_grad()
        for tracker in (self._gpu.tracker, self._gpu.host):
            tracker.peaks.pop()
