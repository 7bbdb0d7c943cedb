"""RoC against GRPO on a pretrained model: SmolLM2-135M on word problems, from one cold start each seed.

    python benchmarks/experiments/roc_against_grpo_smollm2.py FOLDER ...
    python benchmarks/experiments/roc_against_grpo_smollm2.py FOLDER ... --grpo RUN ...

    FOLDER of examples/smollm2_words ──cold start──> FOLDER/run: RoC, as it is there
                                                └──> FOLDER/grpo: its recipe, no draw, as many attempts
                                                          └──> differences over the held-out questions

Each FOLDER is one seed, and its run is not made again. The GRPO arm has the recipe of the run with
`rl.roc_mode = "none"`: of every task as many attempts as RoC keeps, all of them learned, and as many steps as
make the same number of attempts. It goes on where it was stopped. With `--grpo` the arms lie elsewhere, one
for each FOLDER in the same order, and are taken as they are.

RoC is seen at its last evaluation. GRPO is seen after as many steps, and where it had generated as many
tokens; there each question has the value on the straight line between two evaluations. Intervals are at 95%:
paired over the held-out questions of a seed; over the questions of all seeds, whole questions drawn; and
Student's over seeds, which two seeds make wide. Of erroneous calls in correct attempts: over the steps up to
that point, and over the held-out attempts at RoC's last evaluation.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from arms import ROOT, Line, call, figure, paired, write
from words_run import (
    Evaluation,
    Step,
    UnfitRunError,
    WordsRun,
    differing_fields,
    held_out_set,
    read_run,
    stretches,
)

from rocstar.train.evaluation.statistics.intervals import interval_of_means, share_interval
from rocstar.train.evaluation.statistics.paired import paired_difference
from rocstar.train.reading.analysis.statistics.cluster_bootstrap import TaskDraws, interval

NAME = "roc_against_grpo_smollm2"
POINTS = ("start", "steps", "tokens")
"""Before the first step, where both are one model; after as many steps; after as many generated tokens."""
SMOOTH = 3
"""Steps over which a reward is averaged in the figure."""

Shares = dict[str, float]
"""Question -> share of its attempts that were right."""
Counts = list[tuple[int, int]]
"""Erroneous calls, and all calls, in the correct attempts at a task."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="of examples/smollm2_words")
    parser.add_argument(
        "--grpo", type=Path, nargs="+", metavar="RUN", help="finished arms, taken as they are"
    )
    parser.add_argument("--steps", type=int, help="of the GRPO arm; default: to as many attempts as RoC's")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{NAME}.json")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "measured" / f"{NAME}.svg")
    options = parser.parse_args()
    options.miniature = False
    if options.grpo and len(options.grpo) != len(options.folders):
        parser.error(f"{len(options.grpo)} arms for {len(options.folders)} folders; give one for each")
    try:
        pairs = [arms_of(options, k) for k in range(len(options.folders))]
        seeds = [compared(roc, grpo) for roc, grpo in pairs]
    except UnfitRunError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2
    conclude(options, seeds)
    return 0


def arms_of(options: argparse.Namespace, k: int) -> tuple[WordsRun, WordsRun]:
    """RoC's run of a seed, and GRPO's, which is made or gone on with where it is not given."""
    folder: Path = options.folders[k]
    roc = read_run(folder / "run")
    if roc.last_evaluation == 0:
        raise UnfitRunError(f"{folder / 'run'} has no evaluation behind a step; let it come to its end")
    if not options.grpo:
        made(folder, roc, options.steps)
        return roc, read_run(folder / "grpo")
    given: Path = options.grpo[k]
    return roc, read_run(given if (given / "metrics.jsonl").exists() else given / "run")


def made(folder: Path, roc: WordsRun, steps: int | None) -> None:
    """Train the GRPO arm in FOLDER/grpo, unless it came to its end."""
    last, rl = roc.last_evaluation, roc.config["rl"]
    steps = steps or math.ceil(last * rl["rollouts_per_task"] / rl["group_size"])
    overrides = [
        "--rl.roc_mode=none",
        f"--rl.rollouts_per_task={rl['group_size']}",
        f"--stages.0.steps={steps}",
        held_out_set(roc.config, every=last),
    ]
    call("train", str((folder / "run" / "config.toml").resolve()), (folder / "grpo").resolve(), overrides)


# ---- one seed ----


@dataclass(frozen=True, kw_only=True)
class Seed:
    """Two arms of one cold start, compared."""

    differences: dict[str, Shares]
    """At each of POINTS, RoC minus GRPO of each question."""
    errors: dict[str, tuple[Counts, Counts]]
    """Of RoC and of GRPO: up to as many steps, up to as many tokens, and of the held-out attempts."""
    told: dict[str, Any]
    """What stands in the results."""


def compared(roc: WordsRun, grpo: WordsRun) -> Seed:
    """RoC at its last evaluation, GRPO there and at as many tokens. Raises UnfitRunError."""
    last = roc.last_evaluation
    check_same(roc, grpo, last)
    evaluated = max(step for step in grpo.evaluations if step < len(grpo.tokens))
    same = min(step_at(grpo, roc.tokens[last]), float(evaluated))
    shares = {
        "start": (shares_at(roc, 0), shares_at(grpo, 0)),
        "steps": (shares_at(roc, last), shares_at(grpo, last)),
        "tokens": (shares_at(roc, last), shares_at(grpo, same)),
    }
    errors = {
        "steps": (counts(roc.steps[:last]), counts(grpo.steps[:last])),
        "tokens": (counts(roc.steps[:last]), counts(grpo.steps[: round(same)])),
        "held_out": (counts([roc.evaluations[last]]), counts([grpo.evaluations[last]])),
    }
    attempts = roc.evaluations[last].attempts
    differing = {point: differences(*pair) for point, pair in shares.items()}
    told = {
        "seed": roc.config["run"]["seed"],
        "roc": told_arm(roc, last),
        "grpo": told_arm(grpo, len(grpo.steps)),
        "differs": differing_fields(roc.config, grpo.config),
        "steps_with_the_same_tasks": steps_with_the_same_tasks(roc, grpo, last),
        "tokens": {"roc": roc.tokens[last], "grpo_at_steps": grpo.tokens[last], "grpo": grpo.tokens[-1]},
        "as_many_tokens": {"step": same, "is_reached": grpo.tokens[evaluated] >= roc.tokens[last]},
        "held_out": {
            point: {"roc": share_of(a, attempts), "grpo": share_of(b, attempts)}
            for point, (a, b) in shares.items()
        },
        "roc_minus_grpo": {point: over_questions(found) for point, found in differing.items()},
        "errors": {point: error_shares(*pair) for point, pair in errors.items()},
        "curves": {"roc": curves(roc, last), "grpo": curves(grpo, len(grpo.steps))},
    }
    return Seed(differences=differing, errors=errors, told=told)


def check_same(roc: WordsRun, grpo: WordsRun, last: int) -> None:
    """Raises UnfitRunError unless both began alike and were asked the same where they are compared."""
    begun = [arm.config["model"]["path"] for arm in (roc, grpo)]
    if begun[0] != begun[1]:
        raise UnfitRunError(f"RoC began with {begun[0]}, GRPO with {begun[1]}; give arms of one cold start")
    if last not in grpo.evaluations or len(grpo.steps) < last:
        raise UnfitRunError(
            f"the GRPO arm of {begun[1]} made {len(grpo.steps)} steps and was evaluated after "
            f"{sorted(grpo.evaluations)}; RoC after {last}: let it go on, with an evaluation there"
        )
    if roc.evaluations[last].shares.keys() != grpo.evaluations[last].shares.keys():
        raise UnfitRunError(f"the arms of {begun[0]} were asked different held-out questions")
    if grpo.config["rl"]["roc_mode"] != "none" or roc.config["rl"]["roc_mode"] == "none":
        raise UnfitRunError(f"of the arms of {begun[0]} the first must draw siblings, the second must not")


def step_at(run: WordsRun, tokens: float) -> float:
    """The step, with its fraction, at which so many tokens were generated; the last one if that is before."""
    return float(np.interp(tokens, run.tokens, range(len(run.tokens))))


def shares_at(run: WordsRun, step: float) -> Shares:
    """Question by question, on the straight line between the evaluations around a step."""
    below = max(known for known in run.evaluations if known <= step)
    above = min((known for known in run.evaluations if known >= step), default=below)
    weight = (step - below) / (above - below) if above > below else 0.0
    first, second = run.evaluations[below].shares, run.evaluations[above].shares
    return {name: (1 - weight) * first[name] + weight * second[name] for name in first.keys() & second.keys()}


def share_of(shares: Shares, attempts: int) -> dict[str, float]:
    """Mean over questions, with its interval."""
    low, high = interval_of_means(list(shares.values()), num_attempts=attempts)
    return {"value": fmean(shares.values()), "low": low, "high": high}


def differences(roc: Shares, grpo: Shares) -> Shares:
    return {name: roc[name] - grpo[name] for name in sorted(roc.keys() & grpo.keys())}


def over_questions(differing: Shares) -> dict[str, float]:
    found = paired_difference(list(differing.values()), np.random.default_rng(0))
    low, high = found.interval
    told = {"value": found.difference, "low": low, "high": high, "p": found.p}
    return told | {"detectable": found.detectable, "questions": found.num_questions}


def counts(parts: Sequence[Step | Evaluation]) -> Counts:
    """Task by task of each part."""
    return [of_task for part in parts for of_task in part.errors.values()]


def steps_with_the_same_tasks(roc: WordsRun, grpo: WordsRun, last: int) -> int:
    pairs = zip(roc.steps[:last], grpo.steps[:last], strict=True)
    return sum(a.errors.keys() == b.errors.keys() for a, b in pairs)


def told_arm(run: WordsRun, last: int) -> dict[str, Any]:
    """Up to a step, and what the rewards were behind it, which nothing else here goes by."""
    steps = run.steps[:last]
    return {
        "steps": len(steps),
        "attempts": sum(step.attempts for step in steps),
        "learned": sum(step.learned for step in steps),
        "attempts_of_a_step": stretches(steps),
        "rewards_behind": [step.reward for step in run.steps[last:]],
        "starts": run.starts,
    }


def curves(run: WordsRun, last: int) -> dict[str, Any]:
    return {
        "tokens": run.tokens[1 : last + 1],
        "rewards": [step.reward for step in run.steps[:last]],
        "held_out": [
            [run.tokens[step], fmean(one.shares.values())]
            for step, one in sorted(run.evaluations.items())
            if step <= last
        ],
    }


# ---- all seeds ----


def conclude(options: argparse.Namespace, seeds: list[Seed]) -> None:
    """What all seeds tell together, the file, and the figure."""
    told = {
        "all_seeds": {point: over_all([one.differences[point] for one in seeds]) for point in POINTS},
        "over_seeds": {
            point: paired([one.told["roc_minus_grpo"][point]["value"] for one in seeds]) for point in POINTS
        },
        "errors": {
            point: error_shares(*([c for one in seeds for c in one.errors[point][arm]] for arm in (0, 1)))
            for point in seeds[0].errors
        },
    }
    given = ["FOLDER"] * len(seeds) + (["--grpo"] + ["RUN"] * len(seeds) if options.grpo else [])
    command = " ".join(["python", f"benchmarks/experiments/{NAME}.py", *given])
    results = [one.told for one in seeds]
    write(options, {"command": command, **told, "results": results})
    options.figure.write_text(drawn(results))
    for one in results:
        if one["grpo"]["starts"][-1]["status"] != "complete":
            print(f"seed {one['seed']}: the GRPO arm did not come to its end; this is as far as it is")
    print(json.dumps(told, indent=1))


def over_all(seeds: Sequence[Shares]) -> dict[str, Any]:
    """The mean over seeds of their mean differences. Whole questions are drawn, for seeds share some."""
    questions = sorted(set().union(*seeds))
    rows = [[x for seed in seeds for x in (seed.get(q, 0.0), float(q in seed))] for q in questions]
    table = np.array(rows)

    def mean_of(sums: Any) -> Any:
        with np.errstate(invalid="ignore"):
            return (sums[..., 0::2] / sums[..., 1::2]).mean(axis=-1)

    drawn_sums = TaskDraws(len(questions), np.random.default_rng(0)).sums(table)
    low, high = interval(mean_of(drawn_sums), len(questions))
    value = float(mean_of(table.sum(axis=0)))
    return {"value": value, "low": low, "high": high, "questions": len(questions), "seeds": len(seeds)}


def error_shares(roc: Counts, grpo: Counts) -> dict[str, Any]:
    """Share of erroneous calls of both arms, and RoC minus GRPO by Newcombe's rule (1998, method 10): the
    distances from the shares to their limits, squared and added."""
    a, b = error_share(roc), error_share(grpo)
    told: dict[str, Any] = {"roc": a, "grpo": b}
    if a["calls"] and b["calls"]:
        value = a["value"] - b["value"]
        below = math.hypot(a["value"] - a["low"], b["high"] - b["value"])
        above = math.hypot(a["high"] - a["value"], b["value"] - b["low"])
        told["roc_minus_grpo"] = {"value": value, "low": value - below, "high": value + above}
    return told


def error_share(tasks: Counts) -> dict[str, float]:
    """Pooled over calls. The interval goes by how alike the calls of a task are, and is never empty."""
    known = [(errors, calls) for errors, calls in tasks if calls]
    errors, calls = sum(e for e, _ in known), sum(c for _, c in known)
    if not calls:
        return {"errors": 0, "calls": 0}
    share = errors / calls
    spread = fmean((of_task / made - share) ** 2 for of_task, made in known)
    low, high = share_interval(np.array(share), np.array(spread), len(known), calls)
    return {"errors": errors, "calls": calls, "value": share, "low": float(low), "high": float(high)}


# ---- picture ----


def drawn(results: Sequence[Mapping[str, Any]]) -> str:
    """Held-out accuracy and reward by generated token, a line for each arm of each seed."""
    held_out, rewards = [], []
    for one in results:
        for arm in ("roc", "grpo"):
            told = one["curves"][arm]
            label = f"{arm}, seed {one['seed']}"
            held_out.append(Line(label=label, points=[(t / 1e3, y, 0.0) for t, y in told["held_out"]]))
            rewards.append(Line(label=label, points=smoothed(told["tokens"], told["rewards"])))
    across, form = "thousand generated tokens", "{:.2f}".format
    panels = [
        ("Held-out avg@4", across, held_out, form),
        (f"Reward, mean of {SMOOTH} steps", across, rewards, form),
    ]
    return figure("RoC against GRPO, SmolLM2-135M", panels)


def smoothed(tokens: Sequence[int], values: Sequence[float]) -> list[tuple[float, float, float]]:
    return [(tokens[k] / 1e3, fmean(values[max(0, k - SMOOTH + 1) : k + 1]), 0.0) for k in range(len(values))]


if __name__ == "__main__":
    sys.exit(main())
