"""Several learner processes against one: are the policy losses the same, live and from records?

    python benchmarks/torchrun_parity.py [--out FILE]

live      `torchrun --nproc-per-node=R -m rocstar.train recipes/quickstart.toml`, rollouts in the real
          sandbox included (and the cold start, without --model), against one process: five steps
recorded  the same on the trajectories that the one process recorded (`--from-rollouts`), all twenty steps

All runs have the same seed, one torch thread per process and decode in lockstep (`engine.deterministic`).
Runs that agree because there was nothing to add up would prove nothing: microbatches are so small that every
rank has several with loss in every update, every loss must differ from 0, and the weights must move.
"""

from __future__ import annotations

import sys
from pathlib import Path

from quickstart_seeds import rows, run
from report import ROOT, claim, finish, result_parser

BOUNDS = {"live": 1e-4, "recorded": 1e-5}
COMPARED = ("loss/policy", "optim/grad_norm", "entropy/mean", "reward/mean")
COMMON = ("--run.threads=1", "--engine.deterministic=true", "--rl.tokens_per_microbatch=256")


def compare(directory: Path, expected: Path, steps: int) -> dict:
    """The first steps of two runs: every loss, and the largest difference of each compared metric."""
    mine, others = (rows(d, "rl")[:steps] for d in (directory, expected))
    if [row["step"] for row in mine] != list(range(1, steps + 1)) or len(others) != steps:
        raise SystemExit(f"{directory} has {len(mine)} steps, {expected} has {len(others)}, not {steps}")
    differences = {name: max(abs(a[name] - b[name]) for a, b in zip(mine, others, strict=True)) for name in COMPARED}
    losses = [row["loss/policy"] for row in mine]
    return {"largest_difference": differences, "losses": losses, "smallest_loss": min(map(abs, losses))}


def fewest_microbatches(directory: Path, steps: int) -> int:
    """Microbatches with loss in the update that has the fewest, packed again from the records."""
    from rocstar.engine.record.json_record import from_record
    from rocstar.engine.record.reading import read_records
    from rocstar.train.groups.packing import pack_updates
    from rocstar.train.groups.selection import Selection
    from rocstar.train.recipe.load import load_recipe
    from rocstar.train.record.run_directory import records_file

    recipe, found = load_recipe(directory / "config.toml"), []
    for step in range(1, steps + 1):
        records = [r for r in read_records(records_file(directory, step)) if r["decision"]["kept"]]
        selection = Selection(
            kept=[from_record(record) for record in records],
            advantages=[record["advantage"] for record in records],
            verdicts=[],
            groups_used=0,
            groups_no_signal=0,
        )
        updates = pack_updates(selection, recipe, step=step)
        found += [sum(micro.num_loss_tokens > 0 for micro in update) for update in updates]
    return min(found)


def largest_change(directory: Path, expected: Path, step: int, before: int | None = None) -> float:
    """Largest difference of a weight: between two runs at `step`, or of one run between two of its steps."""
    from safetensors.torch import load_file

    places = [(directory, step), (expected, step if before is None else before)]
    a, b = (load_file(d / "checkpoints" / f"step_{k}" / "model.safetensors") for d, k in places)
    if a.keys() != b.keys():
        raise SystemExit(f"{directory} and {expected} have other weights")
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--recipe", default="recipes/quickstart.toml")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "torchrun_parity")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--live-steps", type=int, default=5)
    parser.add_argument("--recorded-steps", type=int, default=20)
    parser.add_argument("--model", help="begin with this Hugging Face directory instead of a cold start")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    begin = [f"--model.path={options.model}", "--sft.steps=0"] if options.model else []
    runs, steps = options.runs, {"live": options.live_steps, "recorded": options.recorded_steps}

    def train(name: str, ranks: int, num_steps: int, *more: str) -> Path:
        run(options.recipe, runs / name, [*COMMON, f"--stages.0.steps={num_steps}", *more], ranks)
        return runs / name

    one = train("live_1", 1, max(steps.values()), *begin)
    recorded = [f"--from-rollouts={one}", f"--model.path={one / 'checkpoints' / 'step_0'}"]
    found: dict[str, dict] = {"live": {}, "recorded": {}}
    for ranks in options.ranks:
        live = one if ranks == 1 else train(f"live_{ranks}", ranks, steps["live"], *begin)
        found["live"][ranks] = compare(live, one, steps["live"])
        learned = train(f"recorded_{ranks}", ranks, steps["recorded"], *recorded)
        found["recorded"][ranks] = compare(learned, one, steps["recorded"])
        last = steps["recorded"]
        found["recorded"][ranks]["weights_differ_by"] = largest_change(learned, one, last)
        found["recorded"][ranks]["weights_moved_by"] = largest_change(learned, learned, last, before=0)
    worst = {
        kind: max(each["largest_difference"]["loss/policy"] for each in of_kind.values())
        for kind, of_kind in found.items()
    }
    real = all(each["smallest_loss"] > 0 for of_kind in found.values() for each in of_kind.values())
    fewest = fewest_microbatches(one, steps["recorded"])
    moved = min(each["weights_moved_by"] for each in found["recorded"].values())
    apart = "largest difference of a policy loss of several ranks from one process"
    claims = [claim(f"{apart}, {kind}", worst[kind], at_most=bound) for kind, bound in BOUNDS.items()]
    claims += [
        claim("losses of these runs that are 0", int(not real), "runs", at_most=0),
        claim("fewest microbatches of an update", fewest, "microbatches", at_least=max(options.ranks)),
        claim("largest change of a weight in these runs", moved, at_least=1e-3),
    ]
    return finish("torchrun_parity", {"steps": steps, **found}, claims, options.out, seeds=[0])


if __name__ == "__main__":
    sys.exit(main())
