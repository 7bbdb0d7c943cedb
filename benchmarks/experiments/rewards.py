"""The reward of the answer alone against what the report tried beside it, and dropped.

    python benchmarks/experiments/rewards.py --seeds 5
    python benchmarks/experiments/rewards.py --seeds 2 --miniature

Arms (examples/failed_ideas/ideas.py): `answer` is the recipe's own reward; `tools` adds up to 0.5 for tool
calls that go well; `repetition` takes up to 0.5 for repeated 4-grams of words; `overlong` lets truncated
attempts teach nothing. All begin with the same cold start of a seed, and have so little room that some
attempts are truncated. Each arm is paired with `answer`; harm is called shown where an interval over seeds
says so.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from arms import (
    MINIATURE_STEPS,
    ROOT,
    Arm,
    cold_start,
    curve_of,
    figure,
    mean_line,
    options_of,
    paired,
    train,
    write,
)

STEPS, ROOM = 24, 96
IDEAS = ROOT / "examples" / "failed_ideas" / "ideas.py"
ARMS = (
    Arm(name="answer", overrides=()),
    Arm(name="tools", overrides=(f"--reward.kind={IDEAS}:answer_and_tools",)),
    Arm(name="repetition", overrides=(f"--reward.kind={IDEAS}:less_for_repeating",)),
    Arm(
        name="overlong",
        overrides=(f"--reward.kind={IDEAS}:mark_truncated", f"--rl.advantage={IDEAS}:leave_out_truncated"),
    ),
)
GOOD = {"held_out": 1, "truncated": -1, "error_share": -1, "repetition": -1}
"""What is compared, and whether more of it is better or worse."""


def main() -> None:
    parser = options_of(__doc__, "rewards", seeds=5, steps=STEPS)
    text = f"room of an attempt, so that some are truncated; default {ROOM}"
    parser.add_argument("--max-response-tokens", type=int, default=ROOM, help=text)
    options = parser.parse_args()
    steps = options.steps or (MINIATURE_STEPS if options.miniature else STEPS)
    results: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in ARMS}
    for seed in range(options.seeds):
        more = (
            f"--model.path={cold_start(options, seed)}",
            "--sft.steps=0",
            f"--stages.0.steps={steps}",
            f"--stages.0.max_response_tokens={options.max_response_tokens}",
            f"--eval.0.every={steps // 6}",
        )
        for arm in ARMS:
            results[arm.name].append(told(train(options, arm, seed, more), steps))
    conclude(options, results)


def told(directory: Path, steps: int) -> dict[str, Any]:
    curve = curve_of(directory)
    last = curve.steps[-max(1, steps // 4) :]
    return {
        "held_out": curve.evaluations[-1][1],
        "truncated": fmean(row["is_truncated/mean"] for row in last),
        "error_share": fmean(row.get("tool/error_share", 0.0) for row in last),
        "repetition": fmean(row.get("text/looping", 0.0) for row in last),
        "calls": fmean(row["tool/calls_mean"] for row in last),
        "curve": curve.evaluations,
    }


def conclude(options: argparse.Namespace, results: dict[str, list[dict[str, Any]]]) -> None:
    base = results["answer"]
    against = {
        name: {
            value: judged(
                paired([mine[value] - its[value] for mine, its in zip(of_arm, base, strict=True)]), good
            )
            for value, good in GOOD.items()
        }
        for name, of_arm in results.items()
        if name != "answer"
    }
    write(options, {"minus_answer": against, "results": results})
    lines = [
        mean_line(name, [[(float(x), y) for x, y in one["curve"]] for one in of_arm])
        for name, of_arm in results.items()
    ]
    options.figure.write_text(figure("Rewards", [("Held-out avg@k", "RL step", lines, "{:.2f}".format)]))
    print(json.dumps(against, indent=1))


def judged(found: dict[str, Any], good: int) -> dict[str, Any]:
    """With what the interval says of harm."""
    worse = "less" if good > 0 else "more"
    verdict = "shown" if found["shows"] == worse else "not shown"
    return found | {"harm": verdict}


if __name__ == "__main__":
    main()
