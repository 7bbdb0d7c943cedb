"""Eight CPU ranks on two "nodes": do they learn what one process learns, and does a run outlive a node?

    python benchmarks/eight_ranks.py --out benchmarks/results/eight_ranks.json          # needs root and `ip`

Network namespaces 10.77.0.2 and .3 are joined by a bridge, with a torchrun of four ranks in each, over gloo.

learn   a small Qwen3, three policy steps of packed rows: weights parted over all eight ranks (FSDP), parted
        in nodes and copied between them (HSDP), and one process. Compared: losses, gradient norms, weights.
kill    the quickstart in miniature with model.sharding = "node", from one cold start, with a checkpoint a
        step, by cluster/launch.py, which reaches the nodes by `ip netns exec`: one run is left alone, of the
        other the second node is killed (every process in its namespace, kill -9) when step 2 is logged. The
        launcher starts all again. Compared as benchmarks/same_bits.py compares: weights of every checkpoint,
        rows of metrics but their times, trajectory records, evaluations.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from kill_resume import last_step
from quickstart_seeds import is_complete
from same_bits import contents
from sandbox_bench.report import ROOT, bar, finish
from two_nodes import NETWORK, spaces

from rocstar.train.learner import checkpoint
from rocstar.train.learner.batch import MicroBatch, pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.learner import LossSettings
from rocstar.train.learner.loss_stats import LossStats
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.settings import loss_settings
from rocstar.train.learner.team import LearnerTeam, World, shard
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.model_config import ModelConfig, ScratchConfig

LEARN = "--learn"
BOUND = 1e-5
RANKS_PER_NODE, STEPS, KILL_BEHIND = 4, 4, 2
SCRATCH = ScratchConfig(
    vocab_size=300, hidden_size=64, num_layers=3, num_heads=4, num_kv_heads=2, intermediate_size=128
)
ROWS, TOKENS = 48, 256
START = ("--sft.steps=150", "--sft.num_demonstrations=1500", "--sft.demonstration_tasks.size=300")
NO_RL = ("--stages.0.steps=0",)
EVALS = ("--eval.data.limit=4", "--eval.samples_per_task=1")
MINIATURE = (
    "--sft.steps=0",
    f"--stages.0.steps={STEPS}",
    "--stages.0.data.size=60",
    "--rl.tasks_per_step=4",
    "--rl.rollouts_per_task=8",
    "--rl.group_size=8",
    "--rl.tokens_per_microbatch=512",
    "--checkpoint.every=1",
    "--checkpoint.keep_last=9",
    "--model.sharding=node",
    "--run.threads=1",
    *EVALS,
)


# ---- learn: in the ranks ----


def updates(step: int, ranks: int) -> list[list[MicroBatch]]:
    """Rows of two turns with tool output between, packed for so many ranks, in two updates."""
    drawn = torch.Generator().manual_seed(step)
    examples = []
    for k in range(ROWS):
        prompt, first, tool, second = (int(n) for n in torch.randint(4, 30, (4,), generator=drawn))
        mask = [0] * prompt + [1] * first + [0] * tool + [1] * second
        examples.append(
            Example(
                ids=torch.randint(SCRATCH.vocab_size, (len(mask),), generator=drawn).tolist(),
                mask=mask,
                weights=[m / 1500 for m in mask],
                rollout_logprobs=(0.3 * torch.randn(len(mask), generator=drawn) - 5.7).tolist(),
                advantage=float(torch.randn((), generator=drawn)),
                name=f"{step}/{k}",
            )
        )
    half = ROWS // 2
    return [
        pack(part, tokens_per_microbatch=TOKENS, ranks=ranks) for part in (examples[:half], examples[half:])
    ]


async def lead(team: LearnerTeam, settings: LossSettings) -> dict[str, Any]:
    """Three steps, on rank 0; their sums and norms, and the weights after them."""
    await team.use(OptimSpec(kind="adamw", lr=1e-3, weight_decay=0.1, grad_clip=1.0, warmup_steps=2))
    stats = [await team.policy_step(updates(step, team.world.size), settings) for step in range(3)]
    weights = await team.full_weights() or checkpoint.full_weights(team.learner.model)
    found = {
        "sums": [[getattr(one, name) for name in LossStats.SUMS] for one in stats],
        "norms": [norm for one in stats for norm in one.grad_norms],
        "weights": {name: weight.detach().clone() for name, weight in weights},
    }
    await team.stop()
    return found


def learn(out: Path) -> int:
    """What every rank does: the steps once for each way to part the weights."""
    torch.set_num_threads(1)
    world = World.join()
    ways = ("all", "node") if world.size > 1 else ("one",)
    for way in ways:
        config = ModelConfig(sharding="all" if way == "one" else way)
        model = build_model(SCRATCH, SCRATCH.vocab_size, seed=0)
        shard(model, world, config)
        with ThreadPoolExecutor(1) as thread:
            team = LearnerTeam(model, world, thread, config)
            with contextlib.closing(team):
                if world.rank:
                    team.follow()
                else:
                    found = asyncio.run(lead(team, loss_settings(Recipe())))
                    torch.save(found, out / f"{way}.pt")
    world.leave()
    sys.stdout.flush()
    os._exit(0)  # see train/__main__.py


def difference(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """The largest of each kind; of sums and norms relative to their size where that is above 1."""

    def of_numbers(a: Sequence[float], b: Sequence[float]) -> float:
        return max(abs(x - y) / max(1.0, abs(y)) for x, y in zip(a, b, strict=True))

    weights = [(w - expected["weights"][name]).abs().max().item() for name, w in found["weights"].items()]
    assert all(math.isfinite(norm) and norm > 0 for norm in found["norms"])
    return {
        "weights": max(weights),
        "sums": max(map(of_numbers, found["sums"], expected["sums"])),
        "gradient_norms": of_numbers(found["norms"], expected["norms"]),
    }


# ---- this side ----


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}


def in_space(node: int, command: Sequence[str]) -> list[str]:
    return ["ip", "netns", "exec", f"rsn-{node}", *command]


def learned(folder: Path) -> dict[str, dict[str, float]]:
    """The three ways to part the weights, compared."""
    folder.mkdir(parents=True, exist_ok=True)
    this = [str(Path(__file__).resolve()), LEARN, str(folder)]
    subprocess.run([sys.executable, *this], check=True, cwd=ROOT)
    running = []
    for node in range(2):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}"]
        torchrun += [
            f"--nproc-per-node={RANKS_PER_NODE}",
            f"--master-addr={NETWORK}.2",
            "--master-port=29600",
        ]
        command = in_space(node, [*torchrun, *this])
        running.append(subprocess.Popen(command, cwd=ROOT, env=environment()))
    codes = [process.wait() for process in running]
    assert codes == [0, 0], codes
    found = {path.stem: torch.load(path, weights_only=False) for path in folder.glob("*.pt")}
    return {
        "HSDP against one process": difference(found["node"], found["one"]),
        "FSDP against one process": difference(found["all"], found["one"]),
        "HSDP against FSDP": difference(found["node"], found["all"]),
    }


def launched(directory: Path, model: Path) -> subprocess.Popen[bytes]:
    """The launcher of a run on both nodes, with its look at them first; what all of it says is in a file."""
    hosts = ",".join(f"rsn-{node}={NETWORK}.{node + 2}" for node in range(2))
    command = [sys.executable, str(ROOT / "cluster" / "launch.py"), "recipes/quickstart.toml"]
    command += [f"--hosts={hosts}", "--shell=ip netns exec {host} bash -c {command}", "--port=29610"]
    command += [f"--ranks={RANKS_PER_NODE}", f"--output-dir={directory}", f"--model.path={model}", *MINIATURE]
    print(shlex.join(command), file=sys.stderr, flush=True)
    with directory.with_suffix(".log").open("w") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=log, stderr=log)


def kill_node(node: int) -> int:
    """kill -9 to every process in the namespace, until none is left; how many there were."""
    killed: set[int] = set()
    while pids := subprocess.run(
        ["ip", "netns", "pids", f"rsn-{node}"], check=True, capture_output=True, text=True
    ).stdout.split():
        for pid in map(int, pids):
            killed.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return len(killed)


def compared(directory: Path) -> dict[str, Any]:
    """What must be equal of two runs: all but the clocks, and which node had which group."""
    found = contents(directory)
    found["metrics"] = [
        {k: v for k, v in row.items() if not k.startswith("nodes/")} for row in found["metrics"]
    ]
    return found


def groups_by_node(directory: Path) -> list[list[float]]:
    """Of each RL step, the groups that each node rolled out."""
    rows = contents(directory)["metrics"]
    return [[row[f"nodes/groups/{node}"] for node in range(2)] for row in rows if "nodes/groups/0" in row]


def killed(runs: Path) -> dict[str, Any]:
    """Runs of which a node is killed, each against one that is left alone."""
    begin = [
        sys.executable,
        "-m",
        "rocstar.train",
        "recipes/quickstart.toml",
        f"--output-dir={runs / 'start'}",
    ]
    if not is_complete(runs / "start"):
        shutil.rmtree(runs / "start", ignore_errors=True)
        subprocess.run([*begin, *START, *NO_RL, *EVALS, "--run.threads=1"], check=True, cwd=ROOT)
    model, alone = runs / "start" / "checkpoints" / "step_0", runs / "alone"
    shutil.rmtree(alone, ignore_errors=True)
    since = time.monotonic()
    with launched(alone, model) as process:
        assert process.wait() == 0, alone.with_suffix(".log").read_text()[-4000:]
    expected = compared(alone)
    rows = expected["metrics"]
    result: dict[str, Any] = {
        "compared": len(expected),
        "rows": len(rows),
        "updates": sum(row.get("loss/policy") is not None for row in rows),
        "seconds_left_alone": round(time.monotonic() - since, 1),
        "groups_by_node": groups_by_node(alone),
    }
    return result | {
        f"node {node}": run_hurt(runs / f"hurt_{node}", model, node, expected) for node in (1, 0)
    }


def run_hurt(directory: Path, model: Path, node: int, expected: dict[str, Any]) -> dict[str, Any]:
    """One run of which `node` is killed."""
    shutil.rmtree(directory, ignore_errors=True)
    since = time.monotonic()
    with launched(directory, model) as process:
        while last_step(directory) < KILL_BEHIND:
            assert process.poll() is None, directory.with_suffix(".log").read_text()[-4000:]
            time.sleep(0.05)
        at_step, num_killed = last_step(directory), kill_node(node)
        code = process.wait()
    said = directory.with_suffix(".log").read_text().splitlines()
    found = compared(directory)
    names = found.keys() | expected.keys()
    return {
        "killed_behind_step": at_step,
        "processes_killed": num_killed,
        "exit_code": code,
        "launcher_said": [
            line for line in said if line.startswith("launch: ") and not line.startswith("launch: warning")
        ],
        "differ": sorted(name for name in names if found.get(name) != expected.get(name)),
        "groups_by_node": groups_by_node(directory),
        "seconds": round(time.monotonic() - since, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "eight_ranks")
    parser.add_argument(
        "--part", choices=("learn", "kill"), action="append", help="only this; may be repeated"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    parts = options.part or ["learn", "kill"]
    if os.geteuid() or shutil.which("ip") is None:
        parser.error("network namespaces need root and `ip` (apt-get install iproute2)")
    options.runs.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"ranks": 2 * RANKS_PER_NODE, "nodes": 2}
    bars = []
    with contextlib.contextmanager(spaces)():
        if "learn" in parts:
            result["learn"] = learned(options.runs / "learn")
            largest = max(max(found.values()) for found in result["learn"].values())
            bars.append(bar("largest difference of FSDP, HSDP and one process", largest, BOUND, at_most=True))
        if "kill" in parts:
            found = result["kill"] = killed(options.runs)
            hurt = [found[f"node {node}"] for node in range(2)]
            differ = sum(len(one["differ"]) for one in hurt)
            bars += [
                bar("exit code of runs of which a node was killed", max(one["exit_code"] for one in hurt), 0,
                    at_most=True),
                bar("weights, rows, records and evaluations that differ", differ, 0, at_most=True),
                bar("updates compared", found["updates"], 1, at_most=False),
            ]  # fmt: skip
    print(json.dumps(result, indent=1), file=sys.stderr)
    return finish("eight_ranks", result, bars, options.out)


if __name__ == "__main__":
    if sys.argv[1:2] == [LEARN]:
        sys.exit(learn(Path(sys.argv[2])))
    sys.exit(main())
