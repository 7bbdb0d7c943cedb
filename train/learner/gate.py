"""The report of the off-policy gate: a message, the worst tokens on disk, and the end of a stuck run.

While the optimizer is paused rollouts continue, no weight changes, and the present weights are published
again after each step, which repairs a failed transfer. The first step within the bounds updates at once. A
run that stays paused for STOP_AFTER steps is saved and ends.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from rocstar.train.algorithm.off_policy import Gate
from rocstar.train.learner.loss_stats import LossStats

STOP_AFTER = 20
"""Steps in a row without an update because of the gate, after which a run ends."""
STUCK = (
    f"the optimizer was paused for {STOP_AFTER} steps: the log-probs of the rollouts are not those of the "
    "learner (mismatch_kl/* and mismatch_ratio/* in metrics.jsonl, tokens in off_policy/). Look for another "
    "dtype, temperature or attention in the inference engine, or for weights that never reach it. The run is "
    "saved: go on with --resume, or raise off_policy.gate_kl and off_policy.gate_ratio_p99"
)


def dump(
    run_dir: Path, step: int, stats: LossStats, gate: Gate, decode: Callable[[tuple[int, ...]], str]
) -> Path:
    """Write the measurements of a paused step and its worst tokens to off_policy/step_N.json."""
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
    return path


def message(step: int, stats: LossStats, gate: Gate, path: Path) -> str:
    """One line for the console."""
    found = stats.mismatch
    return (
        f"step {step}: optimizer paused, no weight changed: mismatch KL {found.kl():.4f} (bound {gate.kl}), "
        f"ratio p99 {found.ratio_p99():.3f} (bound {gate.ratio_p99}), {stats.bad_steps} steps in a row; "
        f"worst tokens in {path}"
    )
