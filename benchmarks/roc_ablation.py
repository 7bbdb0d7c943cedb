"""The paper's Figure 4 in miniature: how fast do tool errors vanish from correct trajectories?

    python benchmarks/roc_ablation.py --starts RUNS --seeds 5 --out benchmarks/results/roc_ablation.json

Arms `paper`, `sort`, `uniform` generate N = 32 and keep G = 16; `none` generates 16 and keeps all. Every
arm starts from the same cold-started checkpoint of a seed (RUNS/seed_S/checkpoints/step_0, made by
quickstart_seeds.py). No length cap forbids a second call. Curves by step and by generated token, with
bands over seeds, go to docs/measured/roc_ablation.svg.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).parent))
from quickstart_seeds import ROOT, correct_ones, machine, rise, rows, run

ARMS = {
    "paper": ["--rl.roc_mode=paper"],
    "sort": ["--rl.roc_mode=sort"],
    "uniform": ["--rl.roc_mode=uniform"],
    "none": ["--rl.roc_mode=none", "--rl.rollouts_per_task=16"],
}
COLOURS = {"paper": "#0072B2", "sort": "#009E73", "uniform": "#D55E00", "none": "#777777"}


def one(arm: str, seed: int, options: argparse.Namespace) -> dict:
    start = options.starts / f"seed_{seed}" / "checkpoints" / "step_0"
    if not (start / "COMPLETE").exists():
        sys.exit(f"{start} is missing: run benchmarks/quickstart_seeds.py first")
    directory = options.runs / f"{arm}_{seed}"
    overrides = [
        f"--model.path={start}",
        "--sft.steps=0",
        f"--stages.0.steps={options.steps}",
        f"--run.seed={seed}",
        "--run.threads=1",
        *ARMS[arm],
    ]
    seconds = run("recipes/quickstart.toml", directory, overrides)
    steps = rows(directory, "rl")
    calls = [(step.errors, step.calls) for step in correct_ones(directory)]
    print(f"{arm} seed {seed}: {rise(directory)['start']:.2f} -> {rise(directory)['end']:.2f}", flush=True)
    return {
        "arm": arm,
        "seed": seed,
        "wall_s": seconds,
        "error_share": [e / c if c else None for e, c in calls],
        "reward": [row.get("reward/mean") for row in steps],
        "tokens": [row["tokens/generated"] for row in steps],
        **rise(directory),
    }


def band(values: list[float]) -> tuple[float, float]:
    """Mean and standard error over seeds."""
    return fmean(values), stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def summarise(results: list[dict]) -> dict:
    out = {}
    for arm in ARMS:
        runs = [r for r in results if r["arm"] == arm]
        thirds = [r["error_share"] for r in runs]
        n = len(thirds[0])
        cut = {
            "first_third": slice(0, n // 3),
            "second_third": slice(n // 3, 2 * n // 3),
            "last_third": slice(2 * n // 3, n),
        }
        out[arm] = {
            name: band([fmean(x for x in share[where] if x is not None) for share in thirds])
            for name, where in cut.items()
        }
        out[arm]["end_reward"] = band([r["end"] for r in runs])
        out[arm]["tokens"] = fmean(sum(r["tokens"]) for r in runs)
    return out


def figure(results: list[dict]) -> str:
    """Two panels side by side as plain SVG: error share by step, and by generated token."""
    panels = [
        ("RL step", lambda r: list(range(1, len(r["error_share"]) + 1))),
        ("thousand generated tokens", cumulative),
    ]
    width, height, left, top = 360, 240, 52, 40
    middle = 'text-anchor="middle" fill="#555"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * (width + 70)} {height + 116}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="16" y="22" font-size="15" font-weight="600">Erroneous tool calls in correct trajectories '
        "(mean and standard error over seeds)</text>",
    ]
    for k, (label, axis) in enumerate(panels):
        x0 = left + k * (width + 70)
        longest = max(axis(r)[-1] for r in results)
        tops = max(x for r in results for x in r["error_share"] if x is not None)
        sx, sy = (
            (lambda v, x0=x0, m=longest: x0 + v / m * width),
            (lambda v, t=tops: top + height - v / t * height),
        )
        for tick in range(5):
            y = tops * tick / 4
            parts.append(
                f'<line x1="{x0}" x2="{x0 + width}" y1="{sy(y):.1f}" y2="{sy(y):.1f}" stroke="#e5e5e5"/>'
            )
            parts.append(
                f'<text x="{x0 - 6}" y="{sy(y) + 4:.1f}" text-anchor="end" fill="#555">{y:.0%}</text>'
            )
            x = longest * tick / 4
            parts.append(f'<text x="{sx(x):.1f}" y="{top + height + 18}" {middle}>{x:.0f}</text>')
        parts.append(f'<text x="{x0 + width / 2}" y="{top + height + 36}" {middle}>{label}</text>')
        for arm, colour in COLOURS.items():
            runs = [r for r in results if r["arm"] == arm]
            if not runs:
                continue
            xs = [fmean(column) for column in zip(*(axis(r) for r in runs), strict=True)]
            bands = [
                band([v or 0.0 for v in column])
                for column in zip(*(r["error_share"] for r in runs), strict=True)
            ]
            up = [f"{sx(x):.1f},{sy(m + s):.1f}" for x, (m, s) in zip(xs, bands, strict=True)]
            down = [f"{sx(x):.1f},{sy(max(0, m - s)):.1f}" for x, (m, s) in zip(xs, bands, strict=True)]
            parts.append(f'<polygon points="{" ".join(up + down[::-1])}" fill="{colour}" opacity="0.15"/>')
            line = " ".join(f"{sx(x):.1f},{sy(m):.1f}" for x, (m, _) in zip(xs, bands, strict=True))
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for k, (arm, colour) in enumerate(COLOURS.items()):
        x = left + k * 110
        parts.append(f'<rect x="{x}" y="{top + height + 54}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="{top + height + 60}">{arm}</text>')
    return "\n".join([*parts, "</svg>\n"])


def cumulative(result: dict) -> list[float]:
    total, out = 0.0, []
    for tokens in result["tokens"]:
        total += tokens / 1000
        out.append(total)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=Path, default=ROOT / "runs" / "quickstart_seeds")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "roc_ablation")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "roc_ablation.json")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "measured" / "roc_ablation.svg")
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    jobs = [(arm, seed) for seed in range(options.seeds) for arm in ARMS]
    with ThreadPoolExecutor(options.at_once) as pool:
        results = list(pool.map(lambda job: one(*job, options), jobs))
    summary = {"machine": machine(), "command": " ".join(["python", *sys.argv]), "arms": summarise(results)}
    options.out.write_text(json.dumps(summary | {"results": results}, indent=1) + "\n")
    options.figure.write_text(figure(results))
    print(json.dumps(summary["arms"], indent=1))


if __name__ == "__main__":
    main()
