"""Do two nodes that share one Redis fabric make the groups of one? Token by token, while it learns.

    python benchmarks/two_nodes.py --netns          # --netns needs root and `ip`

start       a cold start, once: every run begins with its weights
one         one process
ranks       one node with two ranks, one group at a time: the learner of two nodes, and their way of decoding
two         `torchrun --nnodes=2 --nproc-per-node=1` twice on this machine, rendezvous on loopback
netns       the same, each torchrun in a network namespace of its own: 10.77.0.2 and .3, joined by a bridge at
            10.77.0.1, where Redis is; nothing of it can use loopback

In all of them every tool call and every grading goes through one redis-server to one `rocstar sandbox
worker`, and `engine.deterministic` decodes in lockstep. Compared are all trajectories of all steps: token
ids, segments, version spans, turns with their calls and results, statuses and outcomes must be equal.
Log-probs must be within 1e-5: in every step of those of `ranks`, and in the first step of those of `one`, for
later ones come from weights that two ranks and one learn with other rounding. Counted are the groups that
each node rolled out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from quickstart_seeds import ROOT, is_complete, machine, rows

LOGPROB_BOUND = 1e-5
COMPARED = (
    "task",
    "ids",
    "segments",
    "version_spans",
    "turns",
    "finish_reason",
    "outcome",
    "decision",
    "seed",
)
GROUP_BY_GROUP = "--train-group-by-group"
BRIDGE, NETWORK = "rsn-br", "10.77.0"
TRAIN = [sys.executable, "-m", "rocstar.train"]


def spaces() -> Iterator[None]:
    """Two network namespaces, rsn-0 and rsn-1, and the bridge between them and this one."""
    commands = [f"ip link add {BRIDGE} type bridge", f"ip addr add {NETWORK}.1/24 dev {BRIDGE}"]
    commands.append(f"ip link set {BRIDGE} up")
    for node in range(2):
        commands += [
            f"ip netns add rsn-{node}",
            f"ip link add rsn-v{node} type veth peer name eth0 netns rsn-{node}",
            f"ip link set rsn-v{node} master {BRIDGE} up",
            f"ip -n rsn-{node} addr add {NETWORK}.{node + 2}/24 dev eth0",
            f"ip -n rsn-{node} link set eth0 up",
            f"ip -n rsn-{node} link set lo up",
        ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True)
        yield
    finally:
        for node in range(2):
            subprocess.run(["ip", "netns", "del", f"rsn-{node}"], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", BRIDGE], check=False, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def fabric(folder: Path, host: str) -> Iterator[str]:
    """A Redis at `host`, behind a password, and one worker for it; the URL."""
    with socket.socket() as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    password = secrets.token_hex(16)
    config = folder / "redis.conf"
    config.write_text(f'bind {host}\nport {port}\nrequirepass {password}\nsave ""\ndir {folder}\n')
    config.chmod(0o600)
    url = f"redis://:{password}@{host}:{port}"
    worker = [sys.executable, "-c", "import sys; from rocstar.train.cli import main; sys.exit(main())"]
    worker += ["sandbox", "worker", "--flavours", "stdlib,verifier"]
    with (folder / "redis.log").open("w") as log, (folder / "worker.log").open("w") as told:
        with (
            subprocess.Popen(["redis-server", str(config)], stdout=log, stderr=log) as redis,
            subprocess.Popen(
                worker, cwd=ROOT, env=os.environ | {"ROCSTAR_REDIS_URL": url}, stdout=told, stderr=told
            ) as working,
        ):
            try:
                yield url
            finally:
                working.terminate()
                working.wait(60)
                redis.terminate()


def launch(commands: list[list[str]], directory: Path, env: dict[str, str]) -> None:
    """Run all to their ends; the first to fail ends the others."""
    with contextlib.ExitStack() as stack:
        running = []
        for node, command in enumerate(commands):
            log = stack.enter_context(directory.with_suffix(f".{node}.log").open("w"))
            print(" ".join(command), file=sys.stderr, flush=True)
            running.append(subprocess.Popen(command, cwd=ROOT, env=os.environ | env, stdout=log, stderr=log))
        try:
            while any(process.poll() is None for process in running):
                if any(process.returncode for process in running):
                    break
                time.sleep(0.2)
        finally:
            for process in running:
                if process.poll() is None:
                    process.terminate()
                process.wait()
        if any(process.returncode for process in running):
            raise SystemExit(f"{directory}: see its logs beside it")


def train(arm: str, directory: Path, url: str, options: list[str]) -> Path:
    """One run, unless it is done already."""
    if is_complete(directory):
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    env = {"ROCSTAR_REDIS_URL": url}
    arguments = [*options, f"--output-dir={directory}", "--tool.sandbox=redis", "--run.threads=1"]
    if arm == "one":
        launch([[*TRAIN, *arguments]], directory, env)
        return directory
    if arm == "ranks":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        launch([[*torchrun, __file__, GROUP_BY_GROUP, *arguments]], directory, env)
        return directory
    host = f"{NETWORK}.2" if arm == "netns" else "127.0.0.1"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    commands = []
    for node in range(2):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        torchrun += [f"--node-rank={node}", f"--master-addr={host}", f"--master-port={port}"]
        space = ["ip", "netns", "exec", f"rsn-{node}"] if arm == "netns" else []
        commands.append([*space, *torchrun, "-m", "rocstar.train", *arguments])
    launch(commands, directory, env | ({"GLOO_SOCKET_IFNAME": "eth0"} if arm == "netns" else {}))
    return directory


def train_group_by_group(arguments: list[str]) -> int:
    """`rocstar train`, where also the only node has one group at a time."""
    from rocstar.engine.nodes.nodes import Nodes
    from rocstar.train import main as root
    from rocstar.train.cli import main

    @contextlib.asynccontextmanager
    async def open_nodes(recipe, others, token, home_load, note):
        async with Nodes([], home_load=home_load, max_groups=1, note=note) as nodes:
            yield nodes

    root.open_nodes = open_nodes
    return main(["train", *arguments])


def compare(directory: Path, expected: Path, steps: int) -> dict:
    """Every trajectory of two runs."""
    from rocstar.engine.record.reading import read_records
    from rocstar.train.record.run_directory import records_file

    largest = [0.0] * steps
    found: dict = {
        "trajectories": 0,
        "tokens": 0,
        "calls": 0,
        "unequal": [],
        "largest_logprob_difference_by_step": largest,
    }
    for step in range(1, steps + 1):
        mine, others = (
            {record["id"]: record for record in read_records(records_file(d, step))}
            for d in (directory, expected)
        )
        if mine.keys() != others.keys():
            raise SystemExit(f"{directory} and {expected} have other trajectories in step {step}")
        for name, record in mine.items():
            other = others[name]
            found["trajectories"] += 1
            found["tokens"] += sum(p is not None for p in record["logprobs"])
            found["calls"] += sum(len(turn["calls"]) for turn in record["turns"])
            differ = [field for field in COMPARED if record[field] != other[field]]
            if differ:
                found["unequal"].append({"id": name, "fields": differ})
                continue
            for a, b in zip(record["logprobs"], other["logprobs"], strict=True):
                if a is not None:
                    largest[step - 1] = max(largest[step - 1], abs(a - b))
    for name in ("loss/policy", "optim/grad_norm"):
        pairs = zip(rows(directory, "rl")[:steps], rows(expected, "rl")[:steps], strict=True)
        found[f"largest difference of {name}"] = max(abs(a[name] - b[name]) for a, b in pairs)
    found["smallest_loss"] = min(abs(row["loss/policy"]) for row in rows(directory, "rl")[:steps])
    found["nodes"] = {
        name: [row[name] for row in rows(directory, "rl")[:steps]]
        for name in ("nodes/up", "nodes/groups/0", "nodes/groups/1", "nodes/regranted")
    }
    return found


def is_met(found: dict, reference: str) -> bool:
    """Equal, both nodes at work, none failed, something learned."""
    nodes, steps = found["nodes"], found["largest_logprob_difference_by_step"]
    return (
        not found["unequal"]
        and max(steps if reference == "ranks" else steps[:1]) <= LOGPROB_BOUND
        and min(sum(nodes["nodes/groups/0"]), sum(nodes["nodes/groups/1"])) > 0
        and not sum(nodes["nodes/regranted"])
        and found["smallest_loss"] > 0
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="recipes/quickstart.toml")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "two_nodes")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--netns", action="store_true", help="also in two network namespaces (root)")
    parser.add_argument("--model", help="begin with this Hugging Face directory instead of a cold start")
    parser.add_argument(
        "--option", action="append", default=[], help="a field of the recipe: --option=--a.b=c"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "two_nodes.json")
    options = parser.parse_args()
    arms = ["two", "netns"] if options.netns else ["two"]
    options.runs.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict] = {}
    with contextlib.ExitStack() as stack:
        if options.netns:
            stack.enter_context(contextlib.contextmanager(spaces)())
        url = stack.enter_context(fabric(options.runs, f"{NETWORK}.1" if options.netns else "127.0.0.1"))
        model = options.model
        if model is None:
            cold = [options.recipe, "--stages.0.steps=0", "--eval.samples_per_task=1"]
            model = str(train("one", options.runs / "start", url, cold) / "checkpoints" / "step_0")
        for seed in range(options.seeds):
            begin = [options.recipe, f"--model.path={model}", "--sft.steps=0", f"--run.seed={seed}"]
            begin += [f"--stages.0.steps={options.steps}", "--eval.samples_per_task=1", *options.option]
            runs = {
                arm: train(arm, options.runs / f"{arm}_{seed}", url, begin) for arm in ("one", "ranks", *arms)
            }
            for arm in arms:
                for reference in ("one", "ranks"):
                    found = compare(runs[arm], runs[reference], options.steps)
                    results[f"{arm} against {reference}, seed {seed}"] = found
                    found["met"] = is_met(found, reference)
                    print(json.dumps({f"{arm} against {reference}, seed {seed}": found}), flush=True)
    summary = {
        "machine": machine(),
        "command": " ".join(["python", *sys.argv]),
        "recipe": options.recipe,
        "steps": options.steps,
        "logprob_bound": LOGPROB_BOUND,
        "trajectories_of_a_run": min(found["trajectories"] for found in results.values()),
        "tokens_of_a_run": min(found["tokens"] for found in results.values()),
        "unequal": sum(len(found["unequal"]) for found in results.values()),
        "largest_logprob_difference_by_step": {
            reference: [
                max(steps)
                for steps in zip(
                    *(
                        found["largest_logprob_difference_by_step"]
                        for name, found in results.items()
                        if f"against {reference}," in name
                    ),
                    strict=True,
                )
            ]
            for reference in ("one", "ranks")
        },
        "met": all(found["met"] for found in results.values()),
        "runs": results,
    }
    options.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps({k: v for k, v in summary.items() if k != "runs"}, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == [GROUP_BY_GROUP]:
        sys.exit(train_group_by_group(sys.argv[2:]))
    main()
