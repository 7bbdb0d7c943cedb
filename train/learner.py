"""The update: forward, loss, backward over microbatches, one optimizer step. Owns weights and optimizer.

    Example -> pack -> [loss_and_backward per microbatch] -> measure, gate -> clip -> check -> step

All weights of a step come from its global token counts, so four microbatches equal one, and several ranks
equal one: FSDP averages gradients over ranks, hence the factor `world_size` on every loss.

Legend: I input tokens, T tokens with loss, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from rocstar.engine.inference import attention
from rocstar.engine.inference.attention import PackedAttention
from rocstar.train.algorithm.loss import logprobs_and_entropy, policy_loss
from rocstar.train.algorithm.off_policy import Corrected, Correction, Gate, Mismatch, correct, measure
from rocstar.train.batch import MicroBatch
from rocstar.train.optim import Optimizers, OptimSpec, build


class NonFiniteGradientError(Exception):
    """The gradient norm is NaN or infinite; raised before any weight changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """How the policy loss is formed; see train/algorithm/{loss,off_policy}.py."""

    temperature: float
    clip_low: float
    clip_high: float
    correction: Correction = Correction.token
    cap: float = 2.0
    floor: float = 0.5
    gate: Gate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstToken:
    """A token whose rollout and learner log-probs lie far apart; `position` 0 begins the prompt."""

    trajectory: str
    position: int
    token: int
    after_tool: bool
    rollout_logprob: float
    learner_logprob: float

    @property
    def gap(self) -> float:
        return abs(self.rollout_logprob - self.learner_logprob)


NUM_WORST = 20
"""Tokens of a batch that are named when the gate pauses."""


@dataclass(slots=True)
class LossStats:
    """Sums over loss tokens; `max_ratio` is a maximum. Added over microbatches, then over ranks.

    `mismatch` and `worst` are over every token of the batch at the batch start, whichever update has it.
    """

    loss: float = 0.0
    tokens: float = 0.0
    entropy: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    max_ratio: float = 0.0
    mismatch: Mismatch = field(default_factory=Mismatch)
    worst: list[WorstToken] = field(default_factory=list)
    bad_steps: int = 0
    """Steps in a row beyond the gate's bounds, this one included."""
    is_paused: bool = False
    """The gate let no update through; `grad_norms` is empty."""
    grad_norms: list[float] = field(default_factory=list)

    SUMS = ("loss", "tokens", "entropy", "clipped_low", "clipped_high")

    def add(self, other: LossStats) -> None:
        for name in self.SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_ratio = max(self.max_ratio, other.max_ratio)
        self.mismatch.add(other.mismatch)
        self.keep_worst(other.worst)

    def keep_worst(self, others: Sequence[WorstToken]) -> None:
        """Keep the NUM_WORST of both lists, in an order that does not depend on who added whom."""
        both = [*self.worst, *others]
        self.worst = sorted(both, key=lambda w: (-w.gap, w.trajectory, w.position))[:NUM_WORST]


class Learner:
    """One rank's part of the model being trained.

    Invariant: weights change only in `_step`, and only by a finite gradient.
    """

    def __init__(self, model: PreTrainedModel, *, world_size: int = 1) -> None:
        attention.install(model)
        self.model, self.world_size = model, world_size
        self.device = next(model.parameters()).device
        self._optimizers: Optimizers | None = None
        self._grad_clip = math.inf

    def use(self, spec: OptimSpec) -> None:
        """Fresh optimizer state for what follows (the cold start, a stage)."""
        self._optimizers, self._grad_clip = build(self.model, spec), spec.grad_clip

    @property
    def optimizers(self) -> Optimizers:
        assert self._optimizers is not None, "call use() first"
        return self._optimizers

    # ---- forward ----

    def logprobs_and_entropy(self, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """fp32 log-probs_T of the targets under softmax(logits / temperature); entropy_T has no gradient."""
        # At least one row goes through the head: without it a rank would skip the head's collectives.
        rows = micro.rows_T if micro.num_loss_tokens else torch.zeros(1, dtype=torch.long)
        logits_TV = self.model(
            input_ids=micro.ids_I[None].to(self.device),
            position_ids=micro.positions_I[None].to(self.device),
            use_cache=False,
            logits_to_keep=rows.to(self.device),
            attention=PackedAttention(micro.lengths_S, self.device),
        ).logits[0]
        targets = micro.targets_T if micro.num_loss_tokens else torch.zeros(1, dtype=torch.long)
        logprobs_T, entropy_T = logprobs_and_entropy(logits_TV, targets.to(self.device), temperature)
        return logprobs_T[: micro.num_loss_tokens] + 0.0 * logprobs_T.sum(), entropy_T[
            : micro.num_loss_tokens
        ]

    @torch.no_grad()
    def logprobs(self, microbatches: Sequence[MicroBatch], temperature: float) -> list[Tensor]:
        """Log-probs_T of each microbatch under the present weights."""
        return [self.logprobs_and_entropy(micro, temperature)[0] for micro in microbatches]

    # ---- the two objectives ----

    def policy_backward(
        self, micro: MicroBatch, old_logprobs_T: Tensor | None, settings: LossSettings
    ) -> LossStats:
        """Clipped policy loss of one microbatch, accumulated into the gradients.

        `old_logprobs_T` None: these weights are the batch-start weights, the ratio is 1.
        """
        logprobs_T, entropy_T = self.logprobs_and_entropy(micro, settings.temperature)
        start_T = logprobs_T.detach() if old_logprobs_T is None else old_logprobs_T
        corrected = self._correct(micro, start_T, settings)
        result = policy_loss(
            logprobs_T,
            old_logprobs_T=old_logprobs_T,
            advantages_T=micro.advantages_T.to(self.device),
            weights_T=micro.weights_T.to(self.device),
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            tis_T=corrected.weights_T,
        )
        torch.autograd.backward(result.loss * self.world_size)
        stats = LossStats(
            loss=float(result.loss.detach()), tokens=micro.num_loss_tokens, entropy=float(entropy_T.sum())
        )
        stats.clipped_low = float((result.clip_code_T == 1).sum())
        stats.clipped_high = float((result.clip_code_T == 2).sum())
        if micro.num_loss_tokens:
            stats.max_ratio = float(result.ratio_T.max())
        if old_logprobs_T is None:
            self._measure(micro, start_T, corrected, stats)
        return stats

    def _correct(self, micro: MicroBatch, start_logprobs_T: Tensor, settings: LossSettings) -> Corrected:
        return correct(
            start_logprobs_T,
            micro.rollout_logprobs_T.to(self.device),
            micro.targets_S,
            mode=settings.correction,
            cap=settings.cap,
            floor=settings.floor,
        )

    @staticmethod
    def _measure(micro: MicroBatch, start_logprobs_T: Tensor, corrected: Corrected, stats: LossStats) -> None:
        """Add what the rollout and the learner at the batch start disagree about."""
        start_T, rollout_T = start_logprobs_T.cpu(), micro.rollout_logprobs_T
        stats.mismatch.add(measure(start_T, rollout_T, micro.after_tool_T, corrected))
        positions_T = micro.positions_I[micro.rows_T] + 1
        names_T = [name for name, n in zip(micro.names_S, micro.targets_S, strict=True) for _ in range(n)]
        worst = (start_T - rollout_T).abs().topk(min(NUM_WORST, micro.num_loss_tokens)).indices
        stats.keep_worst(
            [
                WorstToken(
                    trajectory=names_T[k],
                    position=int(positions_T[k]),
                    token=int(micro.targets_T[k]),
                    after_tool=bool(micro.after_tool_T[k]),
                    rollout_logprob=float(rollout_T[k]),
                    learner_logprob=float(start_T[k]),
                )
                for k in worst.tolist()
            ]
        )

    def imitation_backward(self, micro: MicroBatch) -> LossStats:
        """Weighted next-token loss of one microbatch; `loss` is the plain sum of cross-entropies."""
        logprobs_T, entropy_T = self.logprobs_and_entropy(micro, 1.0)
        loss = -(micro.weights_T.to(self.device) * logprobs_T).sum()
        torch.autograd.backward(loss * self.world_size)
        return LossStats(
            loss=float(-logprobs_T.detach().sum()),
            tokens=micro.num_loss_tokens,
            entropy=float(entropy_T.sum()),
        )

    # ---- steps ----

    def policy_step(
        self, updates: Sequence[Sequence[MicroBatch]], settings: LossSettings, bad_before: int = 0
    ) -> LossStats:
        """One batch: an optimizer step per update. Ratios are against the weights at the batch start.

        All tokens are measured before the first update: of the later updates' by the forward that their
        ratios need, of the first one's by its own. Then the gate decides, the same on every rank;
        `bad_before` counts the steps in a row before this one that were beyond its bounds.
        """
        later = [self.logprobs(micros, settings.temperature) for micros in updates[1:]]
        total = LossStats()
        for micros, starts in zip(updates[1:], later, strict=True):
            for micro, start_T in zip(micros, starts, strict=True):
                self._measure(micro, start_T, self._correct(micro, start_T, settings), total)
        for k, micros in enumerate(updates):
            self.optimizers.zero_grad()
            for j, micro in enumerate(micros):
                total.add(self.policy_backward(micro, later[k - 1][j] if k else None, settings))
            if k == 0 and not self._passes(total, settings.gate, bad_before):
                self.optimizers.zero_grad()
                return total
            total.grad_norms.append(self._step())
        return total

    def _passes(self, total: LossStats, gate: Gate | None, bad_before: int) -> bool:
        """Sum the mismatch over the ranks and ask the gate."""
        if self.world_size > 1:
            dist.all_reduce(total.mismatch.sums)
        if gate is not None:
            total.bad_steps = gate.count(bad_before, total.mismatch)
            total.is_paused = gate.pauses(total.bad_steps)
        return not total.is_paused

    def imitation_step(self, micros: Sequence[MicroBatch]) -> LossStats:
        """One optimizer step of the cold start."""
        total = LossStats()
        self.optimizers.zero_grad()
        for micro in micros:
            total.add(self.imitation_backward(micro))
        total.grad_norms.append(self._step())
        return total

    def _step(self) -> float:
        """Clip, check, step. Returns the gradient norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._grad_clip)
        full = getattr(norm, "full_tensor", None)  # a DTensor under FSDP
        value = float(full() if full else norm)
        if not math.isfinite(value):
            self.optimizers.zero_grad()
            raise NonFiniteGradientError(f"gradient norm is {value}; no weight was changed")
        self.optimizers.step()
        return value
