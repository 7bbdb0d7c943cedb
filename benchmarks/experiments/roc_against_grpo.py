"""GRPO with Resample-on-Correct against plain GRPO: after as many steps, and after as many generated tokens.

    python benchmarks/experiments/roc_against_grpo.py --seeds 10
    python benchmarks/experiments/roc_against_grpo.py --seeds 2 --miniature

Arm `roc` generates 2G siblings and keeps G, arm `grpo` generates G and keeps all: a step of the first costs
about twice as many tokens. So `grpo` makes 2.5 times as many steps, and is looked at twice: after the steps
of `roc`, and where it has generated the tokens that `roc` had in the end. Both begin with the same cold start
of a seed. Compared are held-out avg@k, and the share of erroneous calls in correct trajectories over the
quarter of the steps before that point; between two evaluations the straight line is taken.
"""

from __future__ import annotations

import argparse
from typing import Any

from arms import (
    MINIATURE_STEPS,
    Arm,
    Curve,
    cold_start,
    curve_of,
    error_share,
    figure,
    held_out_at,
    mean_line,
    options_of,
    paired,
    step_at,
    train,
    write,
)

STEPS, MORE = 24, 2.5


def main() -> None:
    parser = options_of(__doc__, "roc_against_grpo", seeds=10, steps=STEPS)
    options = parser.parse_args()
    steps = options.steps or (MINIATURE_STEPS if options.miniature else STEPS)
    kept = 8 if options.miniature else 16
    longer = round(MORE * steps)
    arms = {
        "roc": Arm(name="roc", overrides=("--rl.roc_mode=paper", f"--stages.0.steps={steps}")),
        "grpo": Arm(
            name="grpo",
            overrides=(
                "--rl.roc_mode=none",
                f"--rl.rollouts_per_task={kept}",
                f"--stages.0.steps={longer}",
            ),
        ),
    }
    results = []
    for seed in range(options.seeds):
        more = (f"--model.path={cold_start(options, seed)}", "--sft.steps=0", f"--eval.0.every={steps // 6}")
        curves = {name: curve_of(train(options, arm, seed, more)) for name, arm in arms.items()}
        results.append({"seed": seed, **compared(curves["roc"], curves["grpo"], steps)})
        results[-1]["curves"] = {name: plotted(curve) for name, curve in curves.items()}
    conclude(options, results)


def compared(roc: Curve, grpo: Curve, steps: int) -> dict[str, Any]:
    """One seed: `roc` at its end, `grpo` at as many steps and at as many tokens."""
    same = step_at(grpo, roc.tokens[-1])
    return {
        "tokens": roc.tokens[-1],
        "roc": at(roc, steps),
        "grpo_at_steps": at(grpo, steps),
        "grpo_at_tokens": at(grpo, same) | {"step": same, "reached": grpo.tokens[-1] >= roc.tokens[-1]},
    }


def at(curve: Curve, step: float) -> dict[str, float | None]:
    end = round(step)
    return {
        "held_out": held_out_at(curve, step),
        "error_share": error_share(curve.errors[max(0, end - max(1, end // 4)) : end]),
    }


def plotted(curve: Curve) -> dict[str, Any]:
    return {
        "tokens": curve.tokens,
        "held_out": curve.evaluations,
        "error_share": [error_share([one]) for one in curve.errors],
    }


def conclude(options: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    differences = {
        point: {
            value: paired([difference(r["roc"][value], r[f"grpo_at_{point}"][value]) for r in results])
            for value in ("held_out", "error_share")
        }
        for point in ("steps", "tokens")
    }
    write(options, {"roc_minus_grpo": differences, "results": results})
    curves = {name: [r["curves"][name] for r in results] for name in ("roc", "grpo")}
    held_out = [
        mean_line(name, [[(tokens_at(c, step), value) for step, value in c["held_out"]] for c in of_arm])
        for name, of_arm in curves.items()
    ]
    errors = [
        mean_line(
            name,
            [list(zip((t / 1e3 for t in c["tokens"]), c["error_share"], strict=True)) for c in of_arm],
        )
        for name, of_arm in curves.items()
    ]
    across = "thousand generated tokens"
    panels = [
        ("Held-out avg@k", across, held_out, "{:.2f}".format),
        ("Erroneous calls in correct trajectories", across, errors, "{:.0%}".format),
    ]
    options.figure.write_text(figure("RoC against GRPO", panels))
    print(differences)


def tokens_at(curve: dict[str, Any], step: int) -> float:
    return curve["tokens"][step - 1] / 1e3 if step else 0.0


def difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


if __name__ == "__main__":
    main()
