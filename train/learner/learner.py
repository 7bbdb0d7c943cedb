"""The update: forward, loss, backward over microbatches, one optimizer step. Owns weights and optimizer.

    Example -> pack -> check -> [forward, loss, backward per microbatch] -> clip -> check -> gate -> step

Each rank waits for all others in every forward, backward and check. So no rank may raise alone for its part
of the
batch: ranks agree on a check's result, and all stop or none.

All weights of a step come from its global token counts, so four microbatches equal one, and several ranks
equal one: FSDP averages gradients over ranks, hence the factor `world_size` on every loss.

Legend: T tokens with loss, D hidden size, V vocabulary.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from transformers import PreTrainedModel

from rocstar.kernels.cpu_products import fast_products
from rocstar.kernels.linear_loss import head_logits, linear_logprobs, linear_loss
from rocstar.kernels.row_loss import LossOf, RowLoss, of_all_rows
from rocstar.train.algorithm.loss import (
    CLIP_HIGH,
    CLIP_LOW,
    PolicyLoss,
    PolicyTokens,
    imitation_loss,
    policy_loss,
    ratios,
    stopped,
)
from rocstar.train.algorithm.off_policy import Corrected, Correction, Gate, correct, measure, start_kl
from rocstar.train.learner.adapters import send_frozen
from rocstar.train.learner.batch import CHECKED, MicroBatch, last_token
from rocstar.train.learner.loss_stats import LossStats, worst_tokens
from rocstar.train.learner.memory_release import ReleasedMemory, release_memory
from rocstar.train.learner.optim import Optimizers, OptimSpec, build
from rocstar.train.learner.policy_model import Head, PolicyModel
from rocstar.train.learner.token_stats_writer import TokenStatsBuffer


@dataclass(frozen=True, slots=True, kw_only=True)
class BadMicroBatch:
    """The results of one microbatch of a stopped step, computed alone with the weights of the stop.

    None if not computed, because the batch was refused before.
    """

    micro: MicroBatch
    logprobs_T: Tensor | None = None
    loss: float | None = None
    grad_norm: float | None = None


class NonFiniteGradientError(Exception):
    """A loss, the gradient norm or a value of the batch is NaN or infinite; raised on every rank.

    An invalid batch is detected before any weight changes; a non-finite result, before that update.
    """

    def __init__(self, message: str, parts: Sequence[BadMicroBatch] = ()) -> None:
        super().__init__(message)
        self.parts = list(parts)
        """This rank's microbatches of that update; of all updates if the batch is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """How the policy loss is formed; see train/algorithm/{loss,off_policy}.py."""

    temperature: float
    loss: PolicyLoss
    correction: Correction = Correction.token
    cap: float = 2.0
    floor: float = 0.5
    gate: Gate | None = None
    entropy_alpha: float = 0.0
    """Coefficient of the mean entropy, which the loss loses; 0: there is no such term."""
    measures_start: bool = False
    """Score the batch under the start policy too."""

    @property
    def reads_sequences(self) -> bool:
        """True if a token's loss or weight depends on other tokens of its sequence."""
        return self.loss.reads_sequences or self.correction.reads_sequences

    def correct(self, tokens: PolicyTokens) -> Corrected:
        """Return the correction of every token."""
        return correct(tokens, mode=self.correction, cap=self.cap, floor=self.floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """The hooks of an engine in the learner's process; the defaults are those of a process without one.

    The learner's thread calls them.
    """

    learning: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    """Entered for each batch: the engine may use fewer cores meanwhile."""
    before_change: Callable[[], None] = lambda: None
    """Called before the weights change; returns when no other thread reads them."""
    serve: Callable[[int, list[tuple[str, Tensor]]], str | None] | None = None
    """Serves weights as a version, on the first rank of another node; returns what went wrong, or None."""


class Learner:
    """One rank's part of the model being trained.

    Invariant: weights change only in `optim_step`, and only by a finite gradient.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        world_size: int = 1,
        head_dtype: torch.dtype | None = None,
        offloads_moments: bool = False,
    ) -> None:
        """`head_dtype`: type of the logits; None: that of the forward. `offloads_moments`: `release_memory`
        moves the optimizer's moments, and weights that do not learn, to CPU memory."""
        self.model, self.policy, self.world_size = model, PolicyModel(model, head_dtype), world_size
        self.device = self.policy.device
        self.engine = LocalEngine()
        self.token_stats: TokenStatsBuffer | None = None
        """Receives the statistics of each token of the next batch; None without a listener."""
        self.start: Learner | None = None
        """The policy at the start of RL, which never changes; None: no step measures the distance to it."""
        self._num_made = 0
        """Updates made of the present batch."""
        self.gone_through = (0, 0)
        """Microbatches done and in all of the batch that is learned now. Any thread may look."""
        self.offloads_moments = offloads_moments
        self._is_away = False
        """Weights that do not learn are in CPU memory."""
        self._optimizers: Optimizers | None = None
        self._grad_clip = math.inf

    def use(self, spec: OptimSpec) -> None:
        """Reset the optimizer state, for the cold start or a stage."""
        self._optimizers, self._grad_clip = build(self.model, spec), spec.grad_clip

    def release_memory(self) -> ReleasedMemory:
        """Release the memory that is not needed until the next update."""
        self._is_away = self.offloads_moments
        frozen = self.model.parameters() if self.offloads_moments else ()
        return release_memory(self._optimizers, self.device, moments=self.offloads_moments, frozen=frozen)

    def _come_back(self) -> None:
        """Before a forward: all weights are on the device."""
        if self._is_away:
            send_frozen(self.model.parameters(), self.device)
            self._is_away = False

    @property
    def optimizers(self) -> Optimizers:
        assert self._optimizers is not None, "call use() first"
        return self._optimizers

    # ---- the objectives, each a head for the model ----

    @torch.no_grad()
    @fast_products()
    def logprobs(self, microbatches: Sequence[MicroBatch], temperature: float) -> list[Tensor]:
        """fp32 log-probs_T of each microbatch's targets under the present weights."""
        self._come_back()
        score, found = partial(linear_logprobs, temperature=temperature, head_dtype=self.policy.head_dtype), []
        for micro in microbatches:
            found.append(self.policy(micro, partial(score, ids_N=micro.targets_T.to(self.device))))
            self._next_microbatch()
        return found

    @torch.no_grad()
    def greedy(self, ids: Sequence[int], num_tokens: int) -> tuple[list[int], list[float]]:
        """The likeliest ids behind `ids`, one after the other, and their fp32 log-probs."""
        self._come_back()
        row, logprobs = list(ids), []

        def head(hidden_TD: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
            logits_TV = head_logits(hidden_TD, weight_VD, self.policy.head_dtype)
            best = torch.log_softmax(logits_TV.float(), -1).max(-1)
            return best.indices, best.values

        for _ in range(num_tokens):
            found_T, logprobs_T = self.policy(last_token(row), head)
            row.append(int(found_T))
            logprobs.append(float(logprobs_T))
        return row[len(ids) :], logprobs

    def measured(self, micros: Sequence[MicroBatch], temperature: float) -> list[MicroBatch]:
        """Return the microbatches with the log-probs of the present weights as old ones."""
        logprobs = self.logprobs(micros, temperature)
        return [replace(micro, old_logprobs_T=old_T) for micro, old_T in zip(micros, logprobs, strict=True)]

    def policy_backward(self, micro: MicroBatch, settings: LossSettings) -> tuple[LossStats, Tensor]:
        """Policy loss of one microbatch, accumulated into the gradients. Also its log-probs_T."""
        ids_T, weights_T = micro.targets_T.to(self.device), micro.weights_T.to(self.device)
        tokens_at = micro.tokens_at(self.device)
        entropy_weights_T = -settings.entropy_alpha * weights_T if settings.entropy_alpha else None

        def loss_of(logprobs_C: Tensor, rows: slice) -> Tensor:
            tokens = tokens_at(logprobs_C, rows)
            factors_C = settings.correct(tokens).weights_T
            return policy_loss(settings.loss, tokens, weights_T=weights_T[rows], factors_T=factors_C)

        def policy_head(hidden_TD: Tensor, weight_VD: Tensor) -> tuple[Tensor, RowLoss]:
            chosen: LossOf = loss_of
            if settings.reads_sequences:
                logprobs_T = linear_logprobs(
                    hidden_TD, weight_VD, ids_T, temperature=settings.temperature, head_dtype=self.policy.head_dtype
                )
                chosen = of_all_rows(loss_of, logprobs_T)
            return self._linear_loss(hidden_TD, weight_VD, ids_T, chosen, settings.temperature, entropy_weights_T)

        echo: RowLoss | None = None

        def head(hidden_XD: Tensor, weight_VD: Tensor) -> tuple[Tensor, RowLoss]:
            nonlocal echo
            if micro.echo_targets_E is None or micro.echo_weights_E is None:
                return policy_head(hidden_XD, weight_VD)
            loss, rows = policy_head(hidden_XD[: len(ids_T)], weight_VD)
            imitated = micro.echo_targets_E, micro.echo_weights_E
            echo_loss, echo = self._imitation_loss(hidden_XD[len(ids_T) :], weight_VD, *imitated)
            return loss + echo_loss, rows

        loss, rows = self._backward(micro.with_echo(), head)
        tokens = tokens_at(rows.logprobs_N, slice(None))
        ratio_T, code_T = ratios(tokens.logprobs_T, tokens.old_logprobs_T), stopped(settings.loss, tokens)
        if self.token_stats is not None:
            self.token_stats.add(micro, logprobs_T=rows.logprobs_N, entropy_T=rows.entropy_N, code_T=code_T)
        if echo is None:
            return _sums(loss, rows.entropy_N, ratio_T, code_T), rows.logprobs_N
        stats = _sums(rows.loss_N.sum(), rows.entropy_N, ratio_T, code_T)
        stats.echo, stats.echo_tokens = float(-echo.logprobs_N.sum()), float(len(echo.logprobs_N))
        return stats, rows.logprobs_N

    def _imitation_loss(
        self, hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, weights_T: Tensor
    ) -> tuple[Tensor, RowLoss]:
        """At temperature 1: nothing samples these tokens."""
        ids_T, on_device_T = targets_T.to(self.device), weights_T.to(self.device)
        return self._linear_loss(
            hidden_TD,
            weight_VD,
            ids_T,
            lambda logprobs_C, rows: imitation_loss(logprobs_C, weights_T=on_device_T[rows]),
        )

    def imitation_backward(self, micro: MicroBatch) -> tuple[LossStats, Tensor]:
        """Weighted next-token loss of one microbatch; `loss` of the stats is the plain sum."""
        head = partial(self._imitation_loss, targets_T=micro.targets_T, weights_T=micro.weights_T)
        logprobs_T = self._backward(micro, head)[1].logprobs_N
        return LossStats(loss=float(-logprobs_T.sum()), tokens=float(len(logprobs_T))), logprobs_T

    def _linear_loss(
        self,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        ids_T: Tensor,
        loss_of: LossOf,
        temperature: float = 1.0,
        entropy_weights_T: Tensor | None = None,
    ) -> tuple[Tensor, RowLoss]:
        """With the gradient of `_backward`."""
        return linear_loss(
            hidden_TD,
            weight_VD,
            ids_T,
            loss_of,
            temperature=temperature,
            head_dtype=self.policy.head_dtype,
            grad_output=float(self.world_size),
            entropy_weights_N=entropy_weights_T,
        )

    @fast_products()
    def _backward(self, micro: MicroBatch, head: Head[tuple[Tensor, RowLoss]]) -> tuple[Tensor, RowLoss]:
        self._come_back()
        loss, rows = self.policy(micro, head)
        torch.autograd.backward(loss * self.world_size)
        return loss.detach(), rows

    # ---- steps ----

    def policy_step(
        self, updates: Sequence[Sequence[MicroBatch]], settings: LossSettings, bad_before: int = 0
    ) -> LossStats:
        """One batch: an optimizer step per update. Ratios are against the weights at the batch start.

        All tokens are measured before the first update: of the later updates' by the forward that their
        ratios need, of the first one's by its own. Then the gate decides, the same on every rank;
        `bad_before` counts the steps in a row before this one that were beyond its bounds.
        """
        self.gone_through = (0, sum(map(len, updates)) + sum(map(len, updates[1:])))
        try:
            with self.engine.learning():
                return self._policy_step(updates, settings, bad_before)
        finally:
            self.gone_through, self._num_made = (0, 0), 0

    def _policy_step(
        self, updates: Sequence[Sequence[MicroBatch]], settings: LossSettings, bad_before: int
    ) -> LossStats:
        self.check([micro for micros in updates for micro in micros])
        later = [self.measured(micros, settings.temperature) for micros in updates[1:]]
        olds = [[micro.old_logprobs_T for micro in micros if micro.old_logprobs_T is not None] for micros in later]
        total = LossStats()
        for k, micros in enumerate([*updates[:1], *later]):
            stats, logprobs = self.forward_backward(micros, settings, others=list(itertools.chain(*olds)))
            total.add(stats)
            if k == 0:
                for part, starts in zip(updates, [logprobs, *olds], strict=True):
                    self._measure(part, starts, settings, total)
                if not self._passes(total, settings.gate, bad_before):
                    self.optimizers.zero_grad()
                    if self.token_stats is not None:  # the first update's are there already
                        self.token_stats.add_measured(list(itertools.chain(*later)))
                    total.grad_norms.clear()
                    return total
            self.optim_step()
            self._num_made += 1
        return total

    def _measure(
        self, micros: Sequence[MicroBatch], logprobs: Sequence[Tensor], settings: LossSettings, total: LossStats
    ) -> None:
        """Add the differences between the log-probs of the rollout and `logprobs`, those at the batch start.

        With `measures_start` also the distance to the start policy, which takes a forward of it.
        """
        for micro, logprobs_T in zip(micros, logprobs, strict=True):
            now_T = logprobs_T.cpu()
            tokens = micro.tokens_at(now_T.device)(now_T, slice(None))
            total.mismatch.add(measure(tokens, settings.correct(tokens)))
            total.keep_worst(worst_tokens(micro, now_T))
        if settings.measures_start:
            assert self.start is not None, "a recipe that measures the distance has the start policy loaded"
            starts = self.start.logprobs(micros, settings.temperature)
            for now_T, start_T in zip(logprobs, starts, strict=True):
                total.start_kl += float(start_kl(now_T, start_T).sum())
                total.start_tokens += len(now_T)

    def imitation_step(self, micros: Sequence[MicroBatch]) -> LossStats:
        """One optimizer step of the cold start."""
        self.check(micros)
        stats, _ = self.forward_backward(micros, None)
        self.optim_step()
        return stats

    def check(self, micros: Sequence[MicroBatch]) -> None:
        """Look at a batch before any of it is used.

        Raises:
            NonFiniteGradientError: on every rank, if on any of them a microbatch is unusable.
        """
        any_model: Any = self.model  # transformers has no types for it
        vocabulary = any_model.get_output_embeddings().weight.shape[0]
        found = {name for micro in micros for name in micro.unusable(vocabulary)}
        bad = torch.tensor([name in found for name in CHECKED], dtype=torch.int32)
        if self.world_size > 1:
            dist.all_reduce(bad, dist.ReduceOp.MAX)
        names = ", ".join(itertools.compress(CHECKED, bad.tolist()))
        if names:
            why = f"a value that is not finite, or an id outside the vocabulary of {vocabulary}, in {names}"
            parts = [BadMicroBatch(micro=micro) for micro in micros]
            raise NonFiniteGradientError(f"{why}; no weight was changed", parts)

    def forward_backward(
        self, micros: Sequence[MicroBatch], settings: LossSettings | None, *, others: Sequence[Tensor] = ()
    ) -> tuple[LossStats, list[Tensor]]:
        """Make and clip the gradient of one update. `settings` None: the imitation loss.

        Returns:
            The statistics, with the gradient's norm before clipping, and the log-probs_T of each microbatch.

        Raises:
            NonFiniteGradientError: on every rank, if on any of them the norm, the loss, a log-prob of this
                update or one of `others` is not finite.
        """
        self.optimizers.zero_grad()
        logprobs, total = [], LossStats()
        for micro in micros:
            stats, logprobs_T = self._micro_backward(micro, settings)
            self._next_microbatch()
            logprobs.append(logprobs_T)
            total.add(stats)
        self._average_over_ranks()
        norm, loss = _whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._grad_clip)), total.loss
        good = math.isfinite(norm) and math.isfinite(loss)
        good = good and all(bool(t.isfinite().all()) for t in [*logprobs, *others])
        verdict = torch.tensor([good], dtype=torch.int32)
        if self.world_size > 1:
            dist.all_reduce(verdict, dist.ReduceOp.MIN)
        if not int(verdict):
            parts = self._one_by_one(micros, settings)
            why = f"gradient norm {norm}, loss {loss}"
            if math.isfinite(norm) and math.isfinite(loss):
                why += ", but a log-prob or another rank's loss is not finite"
            problems = ["" if settings is None else settings.loss.problem] * self.world_size
            if self.world_size > 1:
                dist.all_gather_object(problems, problems[0])
            why = next(filter(None, problems), why)
            made = self._num_made
            changed = f"{made} earlier updates of the batch were made" if made else "no weight was changed"
            raise NonFiniteGradientError(f"{why}; {changed}", parts)
        total.grad_norms.append(norm)
        return total, logprobs

    def _average_over_ranks(self) -> None:
        """The gradients of what every rank has whole (adapters), once an update; FSDP averages its own.

        All ranks get the same bits, and so keep the same weights.
        """
        if self.world_size == 1 or self.policy.is_sharded:
            return
        grads = []
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                grads.append(parameter.grad)
        flat = parameters_to_vector(grads)
        dist.all_reduce(flat)
        flat /= self.world_size  # in place: a quotient of its own would be a third copy of the gradients
        vector_to_parameters(flat, grads)

    def _next_microbatch(self) -> None:
        done, total = self.gone_through
        self.gone_through = (done + 1, total)

    def _micro_backward(self, micro: MicroBatch, settings: LossSettings | None) -> tuple[LossStats, Tensor]:
        return self.imitation_backward(micro) if settings is None else self.policy_backward(micro, settings)

    def _one_by_one(self, micros: Sequence[MicroBatch], settings: LossSettings | None) -> list[BadMicroBatch]:
        """Every microbatch again by itself, for the dump of a stopped step. Leaves no gradient."""
        parts, self.token_stats = [], None
        for micro in micros:
            self.optimizers.zero_grad()
            stats, logprobs_T = self._micro_backward(micro, settings)
            grads = [p.grad for p in self.model.parameters() if p.grad is not None]
            norm = _whole(torch.nn.utils.get_total_norm(grads))
            parts.append(BadMicroBatch(micro=micro, logprobs_T=logprobs_T.cpu(), loss=stats.loss, grad_norm=norm))
        self.optimizers.zero_grad()
        return parts

    def _passes(self, total: LossStats, gate: Gate | None, bad_before: int) -> bool:
        """Sum the mismatch over the ranks and ask the gate."""
        if self.world_size > 1:
            dist.all_reduce(total.mismatch.sums)
        if gate is not None:
            total.bad_steps = gate.count(bad_before, total.mismatch)
            total.is_paused = gate.pauses(total.bad_steps)
        return not total.is_paused

    def optim_step(self) -> None:
        """Change the weights by the gradient of `forward_backward`, which is finite. The only place that does."""
        self.engine.before_change()
        self.optimizers.step()


def _sums(loss: Tensor, entropy_T: Tensor, ratio_T: Tensor, code_T: Tensor) -> LossStats:
    """The sums of one microbatch; waits for the device once."""
    low, high = code_T == CLIP_LOW, code_T == CLIP_HIGH
    top = ratio_T.max() if len(ratio_T) else loss.new_zeros(())
    names = ("loss", "entropy", "clipped_low", "clipped_high", "max_ratio")
    sums = torch.stack([loss, entropy_T.sum(), low.sum(), high.sum(), top]).tolist()
    return LossStats(tokens=float(len(ratio_T)), **dict(zip(names, sums, strict=True)))


def _whole(norm: Tensor) -> float:
    """A norm over all ranks: under FSDP it is a DTensor, and reading it a collective."""
    full = getattr(norm, "full_tensor", None)
    return float(full() if full else norm)
