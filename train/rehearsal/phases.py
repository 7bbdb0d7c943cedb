"""The acts of a rehearsal: the real learner on a simulated GPU, and the memory that each act holds.

    moments ─> sft step ─> [moments] ─> rl step ─> publish ─> checkpoint

An act begins with the memory that the act before leaves: weights and moments exist when a step begins, as in
every step of a run but the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from rocstar.train.learner import checkpoint
from rocstar.train.learner.adapters import weights_of
from rocstar.train.learner.batch import MicroBatch, empty_microbatch
from rocstar.train.learner.gather import gathered, planned, whole_buckets
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.model_io import DTYPES, HEAD_DTYPES
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.policy_model import runs_again
from rocstar.train.learner.settings import cold_start_optimizer, loss_settings, stage_optimizer
from rocstar.train.learner.sharding import shard
from rocstar.train.learner.world import World
from rocstar.train.recipe.config import Recipe
from rocstar.train.rehearsal.fake_gpu import FakeGpu
from rocstar.train.rehearsal.memory_scopes import book_gradients, local
from rocstar.train.rehearsal.memory_tracker import Category, MemoryPeak


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
        book_gradients(model, gpu.tracker)

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
