"""The learner's settings of a recipe: policy loss, coefficient of its entropy term, gate, optimizer of a stage."""

from __future__ import annotations

from dataclasses import dataclass

from rocstar.train.algorithm.losses import LOSSES
from rocstar.train.algorithm.off_policy import Correction, Gate
from rocstar.train.learner.learner import LossSettings
from rocstar.train.learner.loss_stats import LossStats
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.own_loss import OwnLoss
from rocstar.train.recipe.config import Recipe, SftConfig
from rocstar.train.recipe.rl_config import RlConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyControl:
    """The coefficient of the entropy term: the loss of an update is the policy loss - alpha * mean entropy.

        c' = max(0, c + step if e < target else c - step)        alpha' = c' if e < target else 0

    e is the mean entropy (nats) of the policy's tokens that a batch learned, c' and alpha' are of the next batch; both
    begin at 0. The mean is over all policy tokens of the update, whatever `off_policy.correction` makes of them.

    Source: Skywork-OR1 (arXiv 2505.22312). In its program the target is 0.2 nats, the step 1e-4, c at most 0.005 (here
    it has no upper bound), and e the mean of -log p of the sampled tokens instead of the entropies.
    """

    c: float = 0.0
    alpha: float = 0.0

    def after(self, stats: LossStats, rl: RlConfig) -> EntropyControl:
        """Return the control of the next batch: the same if this one was not learned."""
        if stats.is_paused or not stats.tokens:
            return self
        is_below = stats.entropy / stats.tokens < rl.entropy_target
        c = max(0.0, self.c + (rl.entropy_step if is_below else -rl.entropy_step))
        return EntropyControl(c=c, alpha=c if is_below else 0.0)


def loss_settings(recipe: Recipe, step: int = 0, *, alpha: float = 0.0) -> LossSettings:
    """Return the recipe's policy loss. step: of the run, from 1; 0 outside a run. alpha: see `EntropyControl`."""
    rl, off_policy = recipe.rl, recipe.off_policy
    every = rl.start_kl_every
    return LossSettings(
        temperature=rl.temperature,
        loss=LOSSES[rl.loss](**rl.constants()) if rl.loss in LOSSES else OwnLoss(rl.loss),
        correction=Correction(off_policy.correction),
        cap=off_policy.cap,
        floor=off_policy.floor,
        gate=off_policy_gate(recipe),
        entropy_alpha=alpha if rl.entropy_target else 0.0,
        measures_start=every > 0 and step > 0 and step % every == 0,
    )


def off_policy_gate(recipe: Recipe) -> Gate:
    """When a step is too far from what rolled it out to be learned."""
    config = recipe.off_policy
    return Gate(kl=config.gate_kl, ratio_p99=config.gate_ratio_p99, steps=config.gate_steps)


def stage_optimizer(recipe: Recipe) -> OptimSpec:
    """AdamW at a constant rate after the warm-up, which is counted in rollout steps."""
    rl = recipe.rl
    return OptimSpec(
        kind="adamw",
        lr=rl.lr,
        betas=(rl.betas[0], rl.betas[1]),
        weight_decay=rl.weight_decay,
        grad_clip=rl.grad_clip,
        warmup_steps=rl.warmup_steps * rl.num_updates_per_batch,
    )


def cold_start_optimizer(sft: SftConfig) -> OptimSpec:
    """Return the optimizer of the cold start, whose rate decays at the end."""
    return OptimSpec(
        kind=sft.optimizer,
        lr=sft.lr,
        betas=(sft.betas[0], sft.betas[1]),
        weight_decay=0.0,
        grad_clip=1.0,
        warmup_steps=sft.warmup_steps,
        total_steps=sft.steps,
        decay_fraction=sft.decay_fraction,
    )
