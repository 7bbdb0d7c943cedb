"""Statistics of an update: sums over loss tokens, the tokens with the largest differences, the gate's report.

While the off-policy gate pauses the optimizer, rollouts continue, no weight changes, and the present weights
are published again after each step, which repairs a failed transfer. The first step within the bounds updates
at once. A run that stays paused for STOP_AFTER steps is saved and ends.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from torch import Tensor

from rocstar.train.algorithm.off_policy import AFTER_TOOL, CAPPED, ELSEWHERE, MASKED, Gate, Mismatch
from rocstar.train.learner.batch import MicroBatch

NUM_WORST = 20
"""Tokens of a batch that are named when the gate pauses."""
STOP_AFTER = 20
"""Steps in a row without an update because of the gate, after which a run ends."""
STUCK = (
    f"the optimizer was paused for {STOP_AFTER} steps: the log-probs of the rollouts are not those of the "
    "learner (mismatch_kl/* and mismatch_ratio/* in metrics.jsonl, tokens in off_policy/). Look for another "
    "dtype, temperature or attention in the inference engine, or for weights that never reach it. The run is "
    "saved: go on with --resume, or raise off_policy.gate_kl and off_policy.gate_ratio_p99"
)


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
    start_kl: float = 0.0
    """Sum over `start_tokens`; see algorithm/off_policy.py."""
    start_tokens: float = 0.0
    """Tokens of the batch that the start policy scored; 0 in most steps."""
    echo: float = 0.0
    """Sum of the cross-entropy over `echo_tokens`."""
    echo_tokens: float = 0.0
    max_ratio: float = 0.0
    mismatch: Mismatch = field(default_factory=Mismatch)
    worst: list[WorstToken] = field(default_factory=list)
    bad_steps: int = 0
    """Steps in a row beyond the gate's bounds, this one included."""
    is_paused: bool = False
    """The gate let no update through; `grad_norms` is empty."""
    grad_norms: list[float] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)
    """Errors of the ranks that could not write the token statistics of the step before."""

    SUMS = (
        *("loss", "tokens", "entropy", "clipped_low", "clipped_high"),
        *("start_kl", "start_tokens", "echo", "echo_tokens"),
    )

    def add(self, other: LossStats) -> None:
        for name in self.SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_ratio = max(self.max_ratio, other.max_ratio)
        self.mismatch.add(other.mismatch)
        self.grad_norms += other.grad_norms
        self.keep_worst(other.worst)

    def keep_worst(self, others: Sequence[WorstToken]) -> None:
        """Keep the NUM_WORST of both lists, in an order that does not depend on who added whom."""
        both = [*self.worst, *others]
        self.worst = sorted(both, key=lambda w: (-w.gap, w.trajectory, w.position))[:NUM_WORST]


def worst_tokens(micro: MicroBatch, start_logprobs_T: Tensor) -> list[WorstToken]:
    """The NUM_WORST tokens of a microbatch; log-probs of the learner at the batch start, on the CPU."""
    start_T, rollout_T = start_logprobs_T, micro.rollout_logprobs_T
    positions_T = micro.positions_I[micro.rows_T] + 1
    names_T = [name for name, n in zip(micro.names_S, micro.targets_S, strict=True) for _ in range(n)]
    worst = (start_T - rollout_T).abs().topk(min(NUM_WORST, micro.num_loss_tokens)).indices
    return [
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


def update_metrics(stats: LossStats) -> dict[str, float]:
    """Return the metrics of one batch's optimizer steps; for a paused step only its measurements."""
    found = stats.mismatch
    metrics = {
        "mismatch_kl/mean": found.kl(),
        "mismatch_ratio/p99": found.ratio_p99(),
        "tis/capped_fraction": found.mean(CAPPED),
        "tis/masked_fraction": found.mean(MASKED),
        "gate/bad_steps": float(stats.bad_steps),
        "gate/paused": float(stats.is_paused),
    }
    for row, name in ((AFTER_TOOL, "after_tool"), (ELSEWHERE, "elsewhere")):
        if found.num_tokens(row):  # an absent kind of token has no entry
            metrics[f"mismatch_kl/{name}"] = found.kl(row)
            metrics[f"mismatch_ratio/p99_{name}"] = found.ratio_p99(row)
            metrics[f"tis/masked_fraction_{name}"] = found.mean(MASKED, row)
    if stats.start_tokens:
        metrics["start_kl/mean"] = stats.start_kl / stats.start_tokens
    if stats.is_paused:
        return metrics
    tokens = max(1.0, stats.tokens)
    if stats.echo_tokens:
        metrics |= {"loss/echo": stats.echo / stats.echo_tokens, "tokens/echo": stats.echo_tokens}
    return metrics | {
        "loss/policy": stats.loss / max(1, len(stats.grad_norms)),
        "clip/low_fraction": stats.clipped_low / tokens,
        "clip/high_fraction": stats.clipped_high / tokens,
        "entropy/mean": stats.entropy / tokens,
        "ratio/max": stats.max_ratio,
        "optim/grad_norm": fmean(stats.grad_norms) if stats.grad_norms else 0.0,
        "tokens/loss": stats.tokens,
    }


def report_paused_step(
    run_dir: Path, step: int, stats: LossStats, gate: Gate, decode: Callable[[tuple[int, ...]], str]
) -> str:
    """Write the measurements of a paused step and its worst tokens to off_policy/step_N.json.

    Return the line for the console.
    """
    found = stats.mismatch
    content = {
        "step": step,
        "bounds": dataclasses.asdict(gate),
        "kl": found.kl(),
        "ratio_p99": found.ratio_p99(),
        "tokens": found.num_tokens(),
        "worst": [dataclasses.asdict(token) | {"text": decode((token.token,))} for token in stats.worst],
    }
    path = run_dir / "off_policy" / f"step_{step:06d}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="ascii")
    return (
        f"step {step}: optimizer paused, no weight changed: mismatch KL {found.kl():.4f} (bound {gate.kl}), "
        f"ratio p99 {found.ratio_p99():.3f} (bound {gate.ratio_p99}), {stats.bad_steps} steps in a row; "
        f"worst tokens in {path}"
    )
