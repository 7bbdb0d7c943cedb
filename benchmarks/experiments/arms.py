"""What the experiments share: arms are runs that are made once, compared seed by seed, and drawn.

    cold start of a seed ──> arm A ──┐
                        └──> arm B ──┴─> difference by seed ──> t interval over seeds

An arm that came to its end is not run again; one that was stopped goes on from its last checkpoint. Seeds are
the sample: what two arms of one seed share (cold start, tasks, noise of the demonstrations) is paired away.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from compact_results import compact
from quickstart_seeds import ROOT, correct_ones, is_complete, machine, rows

from rocstar.engine.charts import drawing, escape, nice_ticks
from rocstar.train.evaluation.statistics.paired import paired_difference

MINIATURE = (
    "--sft.steps=300",
    "--sft.num_demonstrations=4000",
    "--rl.tasks_per_step=6",
    "--rl.rollouts_per_task=16",
    "--rl.group_size=8",
    "--eval.0.samples_per_task=2",
    "--eval.0.data.limit=48",
)
"""Of the quickstart, so that a seed takes a tenth: to see that an experiment works, not what it shows."""
MINIATURE_STEPS = 6
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#777777", "#A6598B")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of learning: its name and what it sets in the recipe."""

    name: str
    overrides: tuple[str, ...]


def options_of(doc: str | None, name: str, *, seeds: int, steps: int) -> argparse.ArgumentParser:
    """The options that every experiment has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--steps", type=int, help=f"RL steps of an arm; default {steps}")
    parser.add_argument("--recipe", default=str(ROOT / "recipes" / "quickstart.toml"))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "experiments" / name)
    parser.add_argument(
        "--starts", type=Path, help="cold starts, shared by experiments; default: beside --runs"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{name}.json")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "measured" / f"{name}.svg")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of a run")
    text = "a field of the recipe in every arm and cold start, to make all of them smaller; may be repeated"
    parser.add_argument("--also", action="append", default=[], metavar="FIELD=VALUE", help=text)
    parser.add_argument(
        "--miniature", action="store_true", help="a tenth of the size; shows nothing but itself"
    )
    return parser


def common(options: argparse.Namespace, seed: int) -> tuple[str, ...]:
    """Overrides of all arms of a seed."""
    return (
        *(MINIATURE if options.miniature else ()),
        *(f"--{one}" for one in options.also),
        f"--run.seed={seed}",
        f"--run.threads={options.threads}",
    )


def cold_start(options: argparse.Namespace, seed: int) -> Path:
    """The checkpoint with which the arms of a seed begin, made if it is not there."""
    starts = options.starts or options.runs.parent / ("starts_miniature" if options.miniature else "starts")
    directory = starts / f"seed_{seed}"
    saved = directory / "checkpoints" / "step_0"
    if not (saved / "COMPLETE").exists():
        call("sft", options.recipe, directory, common(options, seed))
    return saved


def train(options: argparse.Namespace, arm: Arm, seed: int, more: Sequence[str] = ()) -> Path:
    """The directory of an arm's finished run, made or gone on with if it is not there."""
    directory = options.runs / f"{arm.name}_{seed}"
    call("train", options.recipe, directory, (*common(options, seed), *more, *arm.overrides))
    return directory


def call(verb: str, recipe: str, directory: Path, overrides: Sequence[str]) -> None:
    """`rocstar VERB`, unless it came to its end."""
    if is_complete(directory):
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    is_begun = verb == "train" and (directory / "metrics.jsonl").exists()
    program = "import sys; from rocstar.train.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, verb, recipe, "--output-dir", str(directory)]
    command += ["--resume"] if is_begun else []
    started = time.monotonic()
    with (directory.parent / f"{directory.name}.log").open("a") as log:
        subprocess.run([*command, *overrides], cwd=ROOT, check=True, stdout=log, stderr=log)
    print(f"{directory.name}: {time.monotonic() - started:.0f} s", flush=True)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A run by RL step and by generated token."""

    tokens: list[float]
    """Generated since the first step, after each step."""
    rewards: list[float]
    errors: list[tuple[int, int]]
    """Erroneous calls and all calls in correct trajectories, of each step."""
    evaluations: list[tuple[int, float]]
    """RL step and held-out avg@k, of each evaluation."""
    steps: list[dict[str, Any]]
    """The rows of metrics.jsonl."""


def curve_of(directory: Path) -> Curve:
    steps = rows(directory, "rl")
    return Curve(
        tokens=np.cumsum([row["tokens/generated"] for row in steps]).tolist(),
        rewards=[row.get("reward/mean", 0.0) for row in steps],
        errors=[(step.errors, step.calls) for step in correct_ones(directory)],
        evaluations=evaluations_of(directory),
        steps=steps,
    )


def evaluations_of(directory: Path) -> list[tuple[int, float]]:
    """RL step and held-out avg@k of each evaluation: by the verdicts, for rewards are what arms differ in."""
    found = []
    for file in sorted((directory / "evaluations").glob("step_*/results.json")):
        questions = json.loads(file.read_text())["sets"]["heldout"]["questions"].values()
        known = [[a for a in question["attempts"] if a is not None] for question in questions]
        step = int(file.parent.name.removeprefix("step_"))
        found.append((step, fmean(fmean(correct) for correct in known if correct)))
    return sorted(found)


def error_share(errors: Sequence[tuple[int, int]]) -> float | None:
    """Pooled; None without a call."""
    calls = sum(all_ for _, all_ in errors)
    return sum(bad for bad, _ in errors) / calls if calls else None


def held_out_at(curve: Curve, step: float) -> float:
    """Held-out avg@k at a step, between evaluations on the straight line."""
    known = curve.evaluations
    return float(np.interp(step, [step for step, _ in known], [value for _, value in known]))


def step_at(curve: Curve, tokens: float) -> float:
    """The step, with its fraction, at which so many tokens were generated; the last one if that is before."""
    return float(np.interp(tokens, [0.0, *curve.tokens], range(len(curve.tokens) + 1)))


def paired(differences: Sequence[float | None]) -> dict[str, Any]:
    """Mean over seeds with its 95% t interval, and what that shows."""
    known = [value for value in differences if value is not None]
    if len(known) < 2:
        return {"seeds": len(known), "difference": known[0] if known else None, "shows": "nothing"}
    found = paired_difference(known, np.random.default_rng(0))
    low, high = found.interval
    shows = "more" if low > 0 else "less" if high < 0 else "nothing"
    return {
        "seeds": len(known),
        "difference": found.difference,
        "low": low,
        "high": high,
        "p": found.p,
        "shows": shows,
    }


def write(options: argparse.Namespace, content: Mapping[str, Any]) -> None:
    """The result, one compact JSON file."""
    told = {
        "machine": machine(),
        "command": " ".join(["python", *sys.argv]),
        "miniature": options.miniature,
        **content,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(compact(json.loads(json.dumps(told))) + "\n")
    print(options.out)


# ---- pictures ----


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve: the mean over seeds, with a band of one standard error."""

    label: str
    points: list[tuple[float, float, float]]
    """x, mean, standard error."""


def mean_line(label: str, runs: Sequence[Sequence[tuple[float, float | None]]]) -> Line:
    """Of runs whose points have the same x, or nearly: the k-th points of all, where all have a value."""
    points = []
    for column in zip(*runs, strict=False):
        values = [y for _, y in column if y is not None]
        if len(values) == len(column):
            spread = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
            points.append((fmean(x for x, _ in column), fmean(values), spread))
    return Line(label=label, points=points)


Format = Callable[[float], str]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 420, 280, 56, 66, 44


def panel(title: str, across: str, lines: Sequence[Line], form: Format, x0: float) -> str:
    """One set of axes with its curves."""
    points = [point for line in lines for point in line.points]
    if not points:
        return f'<text x="{x0 + 20}" y="{TOP}">{escape(title)}: nothing recorded</text>'
    ticks = nice_ticks(0.0, max(y + s for _, y, s in points), 4)
    last = max(x for x, _, _ in points) or 1.0

    def sx(x: float) -> float:
        return round(x0 + LEFT + x / last * (WIDTH - LEFT - 16), 1)

    def sy(y: float) -> float:
        return round(HEIGHT - BOTTOM - max(y, 0.0) / ticks[-1] * (HEIGHT - BOTTOM - TOP), 1)

    parts = [f'<text class="title" x="{x0 + 12}" y="20">{escape(title)}</text>']
    for tick in ticks:
        parts.append(f'<path class="grid" d="M{sx(0)},{sy(tick)}H{sx(last)}"/>')
        parts.append(
            f'<text class="tick" x="{sx(0) - 6}" y="{sy(tick) + 4}" text-anchor="end">{form(tick)}</text>'
        )
    for tick in (t for t in nice_ticks(0.0, last, 5) if t <= last):
        parts.append(
            f'<text class="tick" x="{sx(tick)}" y="{HEIGHT - 26}" text-anchor="middle">{tick:,.0f}</text>'
        )
    parts.append(
        f'<text class="unit" x="{sx(last / 2)}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>'
    )
    for k, line in enumerate(lines):
        colour = COLOURS[k % len(COLOURS)]
        band = [f"{sx(x)},{sy(y + s)}" for x, y, s in line.points]
        band += [f"{sx(x)},{sy(y - s)}" for x, y, s in line.points[::-1]]
        path = " ".join(f"{sx(x)},{sy(y)}" for x, y, _ in line.points)
        parts.append(f'<polygon points="{" ".join(band)}" fill="{colour}" opacity=".15"/>')
        parts.append(f'<polyline class="curve" stroke="{colour}" points="{path}"/>')
        parts.append(
            f'<text class="label" x="{x0 + 14 + k * 98}" y="42" fill="{colour}">{escape(line.label)}</text>'
        )
    return "".join(parts)


def figure(title: str, panels: Sequence[tuple[str, str, Sequence[Line], Format]]) -> str:
    """Panels side by side as one SVG file: title, label of the x axis, curves, and how a value is written."""
    body = "".join(panel(*one, x0=k * WIDTH) for k, one in enumerate(panels))
    return drawing(title, WIDTH * len(panels), HEIGHT, body, standalone=True) + "\n"
