"""One update of the learner against one of TRL's GRPOTrainer: the same weights, rows, loss and machine.

    python benchmarks/bench_learner.py --trl-python TRL/bin/python --run runs/quickstart --run runs/smollm2

How to make the peer's environment and the runs: docs/measured/learner.md. A run gives the model (its first
checkpoint), the recorded rows (its first step, all of them) and the token budget of a microbatch; rows of
equal length are made up. Forward, backward, clipping and AdamW in float32; no KL; ratio 1; one step.

Each side is a process of its own on one core with one thread (or --cores 0,1). First both write the gradients
of the same update, which must agree. Then rounds in turn: rocstar, every setting of TRL. A ratio is that of
one round against the setting of TRL with the smallest median; the median over rounds is quoted, in wall and
in CPU time, and a bar takes the smaller one. One setting of TRL, compared apart, is its own second one with
the switch of kernels/cpu_products.py, which rocstar's learner throws by itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sandbox_bench.report import ROOT, bar, finish
from sandbox_bench.stats import median
from transformers import AutoConfig, AutoModelForCausalLM
from trl_bench import rows
from trl_bench.children import Child, num_threads, own
from trl_bench.rows import Batch

from rocstar.sandbox.bench import table
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.run_directory import records_file

LR = 1e-5
BAR = 1.8
GRADIENTS_AGREE = 1e-4
BIG = 50e6
"""Parameters from which on the equal batch is small: an update would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model and one batch."""

    model_name: str
    model: Path
    batch: Batch
    tokens_per_microbatch: int
    has_bar: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How TRL cuts the rows: batches of `size`, `count` of them per update, padded over `together`."""

    size: int
    count: int
    together: int
    is_switched: bool = False
    """float32 products as rocstar's learner chooses them."""

    @property
    def name(self) -> str:
        return f"bs {self.size} ga {self.count} spg {self.together}" + " switched" * self.is_switched


def settings_for(num_rows: int) -> list[Setting]:
    """A twelfth (or eighth) of the rows at a time, padded apart and together, a quarter, all at once."""
    few = 4
    many = 12 if num_rows % 12 == 0 else 8
    quarter, part = num_rows // few, num_rows // many
    return [
        Setting(size=part, count=many, together=1),
        Setting(size=part, count=many, together=many),
        Setting(size=quarter, count=few, together=1),
        Setting(size=part, count=many, together=many, is_switched=True),
        Setting(size=num_rows, count=1, together=1),
    ]


def cases(options: argparse.Namespace) -> list[Case]:
    found = []
    for run in options.run:
        recipe = load_recipe(run / "config.toml")
        model = run / "checkpoints" / "step_0"
        config = AutoConfig.from_pretrained(model)
        big = num_parameters(config) > BIG
        groups, siblings = (1, 16) if big else (12, 32)
        name = f"{config.model_type} {num_parameters(config) / 1e6:.1f}M"
        equal = rows.equal(config.vocab_size, groups=groups, siblings=siblings)
        apart = rows.equal(config.vocab_size, groups=groups, siblings=siblings, shared_prompts=False)
        real = rows.recorded(records_file(run, 1))
        for batch in (equal, apart, real):
            found.append(
                Case(
                    model_name=name,
                    model=model,
                    batch=batch,
                    tokens_per_microbatch=options.tokens or recipe.rl.tokens_per_microbatch,
                    has_bar=batch is equal,
                )
            )
    wanted = options.batches.split(",")
    return [case for case in found if case.batch.name in wanted]


def num_parameters(config: Any) -> int:
    build: Any = AutoModelForCausalLM.from_config
    with torch.device("meta"):
        return sum(p.numel() for p in build(config).parameters())


def measure(case: Case, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    records, for_peer = folder / "rows.jsonl", folder / "rows.json"
    rows.write(case.batch, records)
    for_peer.write_text(json.dumps(rows.for_peer(case.batch)))
    with ExitStack() as stack:
        ours = stack.enter_context(
            own(
                "rocstar",
                "our_update.py",
                [str(case.model), str(records), str(case.tokens_per_microbatch), str(LR)],
                cores=options.cores,
            )
        )
        peers = [
            stack.enter_context(
                Child(
                    setting.name,
                    options.trl_python,
                    "trl_update.py",
                    [
                        *(str(case.model), str(for_peer), str(setting.size), str(setting.count)),
                        *(str(setting.together), str(LR), str(int(setting.is_switched))),
                    ],
                    cores=options.cores,
                )
            )
            for setting in settings_for(len(case.batch.trajectories))[: options.settings]
        ]
        children = [ours, *peers]
        for child in children:
            child.hear()
        agreement = [disagreement(ours, peers[0], folder)]
        for child in peers[1:]:  # the same first update, so that all have the same weights
            agreement.append({"peer": child.name, "grad_norm": child.ask(do="update")["grad_norm"]})
        rounds = [{child.name: child.ask(do="update") for child in children} for _ in range(options.rounds)]
    return summary(case, [peer.name for peer in peers], agreement, rounds)


def ratios_to(name: str, rounds: list[dict[str, Any]], clock: str) -> list[float]:
    """Its seconds over rocstar's, round by round."""
    return [one[name][clock] / one["rocstar"][clock] for one in rounds]


def disagreement(ours: Child, peer: Child, folder: Path) -> dict[str, Any]:
    """How far apart the gradients of the first update are, relative to their norm."""
    files = [folder / "ours.pt", folder / "theirs.pt"]
    norms = [
        child.ask(do="update", gradients=str(file))["grad_norm"]
        for child, file in zip((ours, peer), files, strict=True)
    ]
    mine, theirs = (torch.load(file) for file in files)
    for file in files:
        file.unlink()
    if set(mine) != set(theirs):
        raise RuntimeError(f"the models have other parameters: {sorted(set(mine) ^ set(theirs))}")
    off = sum(float((mine[name] - theirs[name]).square().sum()) for name in mine) ** 0.5
    relative = off / norms[1]
    if not relative < GRADIENTS_AGREE:
        raise RuntimeError(f"the gradients differ by {relative:.1e} of their norm {norms[1]:.6g}")
    return {"peer": peer.name, "our_grad_norm": norms[0], "grad_norm": norms[1], "relative": relative}


def summary(
    case: Case, peers: Sequence[str], agreement: list[dict[str, Any]], rounds: list[dict[str, Any]]
) -> dict[str, Any]:
    def seconds(name: str, clock: str) -> list[float]:
        return [one[name][clock] for one in rounds]

    tokens = case.batch.about()["tokens"]
    plain = [name for name in peers if not name.endswith(" switched")]
    best = min(plain, key=lambda name: median(seconds(name, "wall_s")))
    ratios = {clock: ratios_to(best, rounds, clock) for clock in ("wall_s", "cpu_s")}
    switched = {name: ratios_to(name, rounds, "wall_s") for name in peers if name not in plain}
    sides = []
    for name in ("rocstar", *peers):
        wall = seconds(name, "wall_s")
        sides.append(
            {
                "side": name,
                "wall_s": round(median(wall), 3),
                "wall_range_s": [round(min(wall), 3), round(max(wall), 3)],
                "cpu_s": round(median(seconds(name, "cpu_s")), 3),
                "tokens_per_s": round(tokens / median(wall)),
                "padding_share": round(rounds[0][name].get("padding_share", 0.0), 3),
                "peak_mib": round(max(one[name]["peak_bytes"] for one in rounds) / 2**20),
            }
        )
    return {
        "model": case.model_name,
        "vocabulary": AutoConfig.from_pretrained(case.model).vocab_size,
        "batch": case.batch.name,
        "about": case.batch.about(),
        "tokens_per_microbatch": case.tokens_per_microbatch,
        "has_bar": case.has_bar,
        "gradients": agreement,
        "best_of_trl": best,
        "speedup_wall": round(median(ratios["wall_s"]), 3),
        "speedup_cpu": round(median(ratios["cpu_s"]), 3),
        "speedup_wall_range": [round(min(ratios["wall_s"]), 3), round(max(ratios["wall_s"]), 3)],
        "speedup_wall_switched": {name: round(median(found), 3) for name, found in switched.items()},
        "sides": sides,
    }


def show(found: dict[str, Any]) -> None:
    about = found["about"]
    print(
        f"\n{found['model']}, V = {found['vocabulary']}, {found['batch']}: {about['rows']} rows, "
        f"{about['tokens']} tokens, {about['shared_prefix_share']:.0%} of them in a shared beginning; "
        f"gradients differ by {found['gradients'][0]['relative']:.1e}"
    )
    names = ("side", "wall_s", "wall_range_s", "cpu_s", "tokens_per_s", "padding_share", "peak_mib")
    print(table(names, [[side[name] for name in names] for side in found["sides"]]))
    print(
        f"against {found['best_of_trl']}: {found['speedup_wall']}x wall "
        f"{found['speedup_wall_range']}, {found['speedup_cpu']}x CPU; "
        f"apart: {found['speedup_wall_switched']}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trl-python", type=Path, required=True, help="Python of the peer's environment")
    parser.add_argument("--run", type=Path, action="append", required=True, help="a run of rocstar train")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settings", type=int, default=5, help="only the first so many settings of TRL")
    parser.add_argument("--batches", default="equal,equal prompts apart,recorded")
    parser.add_argument("--tokens", type=int, default=0, help="tokens per microbatch; 0 = as in the recipe")
    parser.add_argument("--cores", default="1", help="of each side, with a thread for each core: 1, or 0,1")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "learner.json")
    options = parser.parse_args()
    results = []
    for case in cases(options):
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(case, options, Path(folder)))
        show(results[-1])
    bars = [
        bar(
            f"{one['model']}: update of TRL over rocstar, time, no padding",
            min(one["speedup_wall"], one["speedup_cpu"]),
            BAR,
            at_most=False,
        )
        for one in results
        if one["has_bar"]
    ]
    versions = own_versions(options.trl_python)
    return finish(
        "learner",
        {"versions": versions, "threads": num_threads(options.cores), "dtype": "float32", "cases": results},
        bars,
        options.out,
    )


def own_versions(python: Path) -> dict[str, str]:
    """What the peer's environment runs; torch is compared with ours, for it must be the same."""
    code = "import json, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in %r}))"
    names = ("torch", "transformers", "accelerate", "trl")
    out = subprocess.run([str(python), "-c", code % (names,)], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(out.stdout)
    if found["torch"] != torch.__version__.split("+")[0] and found["torch"] != torch.__version__:
        raise RuntimeError(f"the peer has torch {found['torch']}, we have {torch.__version__}")
    return found


if __name__ == "__main__":
    sys.exit(main())
