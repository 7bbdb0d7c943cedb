"""Do agents of public packages learn through the gateway, seed after seed? Full runs, cold start included.

    python -m venv V; V/bin/pip install openai anthropic openai-agents
    python benchmarks/foreign_agents.py --packages V/lib/python3.11/site-packages [--seeds 5] [--out FILE]

Each agent of foreign_loops.py, unchanged packages over three dialects, trains on examples/own_agent: held-out avg@4
after the cold start and at the end, and the rise with its paired interval.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from quickstart_seeds import rise, rising, run
from report import ROOT, finish, result_parser

EXAMPLE = ROOT / "examples" / "own_agent"
PACKAGES = {"chat": "openai", "anthropic": "anthropic", "responses": "openai-agents"}
"""The package of each agent of foreign_loops.py."""
FIELDS = ("--agent.command=[]", "--stages.0.steps=24", "--rl.tasks_per_step=8", "--eval.samples_per_task=4")


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="site-packages with the agents' packages")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--agents", nargs="*", default=list(PACKAGES), choices=PACKAGES)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "foreign_agents")
    options = parser.parse_args()
    os.environ["FOREIGN_PACKAGES"] = str(options.packages.absolute())
    folder = options.runs / "example"
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True)
    versions = {one.name: one.version for one in distributions(path=[str(options.packages)])}
    results, claims = [], []
    for name in options.agents:
        fields = [f"--agent.kind={ROOT / 'benchmarks' / 'foreign_loops.py'}:{name}", *FIELDS]
        for seed in range(options.seeds):
            directory = (options.runs / f"{name}_{seed}").absolute()
            seconds = run(str(folder / "recipe.toml"), directory, [*fields, f"--run.seed={seed}"])
            results.append({"agent": name, "seed": seed, "wall_s": seconds, **rise(directory)})
            print(results[-1], flush=True)
        mine = [one for one in results if one["agent"] == name]
        claims.append(rising(f"{PACKAGES[name]} {versions[PACKAGES[name]]} ({name})", mine))
    return finish("foreign_agents", {"results": results}, claims, options.out, seeds=range(options.seeds))


if __name__ == "__main__":
    sys.exit(main())
