"""`--dry-run`: what a recipe will do, in numbers, without building anything.

stages | the world: ranks and nodes | memory per rank, by arithmetic | GPUs of a node | launch commands
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rocstar.train.config import ConfigError, Recipe

if TYPE_CHECKING:
    from rocstar.train.model_size import ModelSize
    from rocstar.train.placement import GpuMap

GB = 1e9
PORT = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Where a run is to go: so many nodes, so many ranks on each."""

    nodes: int = 1
    ranks_per_node: int = 1

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @staticmethod
    def parse(text: str | None) -> Machines:
        """`8x8`, or for None what torchrun says, else one process. ConfigError for another form."""
        if text is None:
            ranks = int(os.environ.get("WORLD_SIZE", "1"))
            local = int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks)))
            return Machines(nodes=max(1, ranks // local), ranks_per_node=local)
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if not match:
            raise ConfigError(f"--world {text!r} is not NODESxRANKS; 8x8 is eight nodes of eight ranks")
        return Machines(nodes=int(match[1]), ranks_per_node=int(match[2]))


def describe(recipe: Recipe, path: str, machines: Machines) -> str:
    """The plan as comments of TOML, to be printed under the recipe."""
    from rocstar.train.model_size import measure  # torch comes with it

    size = measure(recipe.model)
    memory = (
        [f"memory: not known, for {size}"]
        if isinstance(size, str)
        else [*_learner(recipe, size, machines), *_engine(recipe, size, machines)]
    )
    serves = recipe.engine.kind == "sglang"
    servers = ["", *_servers(recipe, size, machines)] if serves else []
    lines = [*_stages(recipe), "", *memory, *servers, "", *_launch(path, machines)]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _stages(recipe: Recipe) -> list[str]:
    rl = recipe.rl
    rollouts = rl.tasks_per_step * rl.rollouts_per_task
    lines = [
        f"{recipe.run.name}: {recipe.sft.steps} SFT steps, {sum(s.steps for s in recipe.stages)} RL steps",
        f"per RL step: {rl.tasks_per_step} tasks x {rl.rollouts_per_task} rollouts = {rollouts} "
        f"trajectories, {rl.group_size} kept per task (RoC {rl.roc_mode}), "
        f"{rl.num_updates_per_batch} optimizer steps",
        "stage           steps  response tokens  turns  filter  worst-case tokens per step",
    ]
    for stage in recipe.stages:
        worst = rollouts * stage.max_response_tokens
        lines.append(
            f"{stage.name:<14} {stage.steps:>6}  {stage.max_response_tokens:>15,}  {stage.max_turns:>5}  "
            f"{stage.filter_rollouts or '-':>6}  {worst:>26,}"
        )
    return lines


def _learner(recipe: Recipe, size: ModelSize, machines: Machines) -> list[str]:
    """What every rank holds, activations aside."""
    ranks, dtype, params = machines.ranks, size.dtype_bytes, size.parameters
    lines = [
        f"memory per rank, {ranks} of them, by arithmetic ({params:,} parameters):",
        _row("weights", 4 * params / ranks, "float32" + (f", a {ranks}th of them" if ranks > 1 else "")),
        _row("gradients", 4 * params / ranks, "float32"),
        _row("optimizer", 8 * params / ranks, "two moments of AdamW"),
    ]
    if ranks > 1 or dtype < 4:
        whole = size.root_parameters + size.layer_parameters
        text = f"embedding, head and one layer whole, with gradients, {recipe.model.dtype}"
        lines.append(_row("gathered", 2 * dtype * whole, text))
    rows = size.chunk_rows
    text = f"{min(rows)} rows on a CPU, {max(rows)} on a GPU: {_gb(max(rows) * size.vocabulary * dtype)}"
    lines.append(_row("logits", min(rows) * size.vocabulary * dtype, text))
    lines.append(_row("head", 4 * size.vocabulary * size.hidden, "its gradient, added up in float32"))
    tokens = recipe.rl.tokens_per_microbatch
    if recipe.model.activation_checkpointing:
        kept = size.layers * size.hidden * dtype * tokens
        lines.append(_row("activations", kept, f"the inputs of {size.layers} layers; one layer's on top"))
    else:
        lines.append(
            f"  activations of {tokens:,} tokens come on top (model.activation_checkpointing = false)"
        )
    return lines


def _engine(recipe: Recipe, size: ModelSize, machines: Machines) -> list[str]:
    """What an embedded engine takes in the first rank of a node: servers are processes of their own."""
    rl, num = recipe.rl, recipe.engine.num_replicas
    if recipe.engine.kind == "sglang":
        return []
    slots = min(recipe.engine.max_running * num, rl.tasks_per_step * rl.rollouts_per_task)
    tokens = max((stage.max_response_tokens for stage in recipe.stages), default=0)
    per_token = size.kv_values_per_token * size.dtype_bytes
    several = f", {num} of them behind the {recipe.engine.policy} scheduler" if num > 1 else ""
    lines = [f"engine: embedded{several}, on the first rank of each node, which holds besides:"]
    if machines.ranks > 1 or size.dtype_bytes < 4:
        lines.append(_row("its weights", size.dtype_bytes * size.parameters, "a copy that is not sharded"))
    text = f"at most {slots} trajectories x {tokens:,} response tokens x {per_token:,} bytes; prompts on top"
    lines.append(_row("KV", slots * tokens * per_token, text))
    return lines


def _servers(recipe: Recipe, size: ModelSize | str, machines: Machines) -> list[str]:
    """The servers of a node: where they run, what they hold, how they are started."""
    from rocstar.train.placement import GpuMap, server_env
    from rocstar.train.servers import Launch

    engine = recipe.engine
    gpus = GpuMap.of(engine, machines.ranks_per_node)
    lines = [
        f"engine: {engine.num_replicas} SGLang servers on each node behind a {engine.policy} "
        f"scheduler of its own, weights by {engine.publish}, placement {engine.placement}",
        *_gpu_map(recipe, gpus, size, machines),
    ]
    given = recipe.model.path != "scratch" and not recipe.sft.steps
    folder = Path(recipe.model.path if given else f"runs/{recipe.run.name}/weights/start")
    for k in range(engine.num_replicas):
        visible = server_env(engine.gpus_of(k), {}).get("CUDA_VISIBLE_DEVICES")
        start = f"CUDA_VISIBLE_DEVICES={visible} " if visible else ""
        lines.append(
            f"server {k}:  {start}{' '.join(Launch(recipe=recipe, folder=folder, replica=k)(PORT + 1 + k))}"
        )
    return [*lines, "rocstar starts and ends the servers; their ports are free ones"]


def _gpu_map(recipe: Recipe, gpus: GpuMap, size: ModelSize | str, machines: Machines) -> list[str]:
    if not gpus.servers:
        return ["GPUs: none is named; the servers run where engine.args.device says"]
    learner = server = ""
    if not isinstance(size, str):
        learner = f"  {_gb(_held_by_rank(size, machines))} and activations"
        share = size.dtype_bytes * size.parameters / len(gpus.servers[0])
        server = f"  {_gb(share)} of weights; KV fills engine.args.mem-fraction-static"
    other = " while no server runs" if recipe.engine.placement == "restart" else ""
    used = {
        gpu: [f"learner rank {rank} of the node{other}{learner}"] for rank, gpu in enumerate(gpus.learner)
    }
    for k, of_server in enumerate(gpus.servers):
        for gpu in of_server:
            used.setdefault(gpu, []).append(f"server {k}{server}")
    return ["GPUs of a node:"] + [f"  GPU {gpu}:  {' | '.join(used[gpu])}" for gpu in sorted(used)]


def _held_by_rank(size: ModelSize, machines: Machines) -> float:
    """Weights, gradients, moments, and what FSDP gathers."""
    held = 16 * size.parameters / machines.ranks
    if machines.ranks > 1 or size.dtype_bytes < 4:
        held += 2 * size.dtype_bytes * (size.root_parameters + size.layer_parameters)
    return held


def _launch(path: str, machines: Machines) -> list[str]:
    """One command per node."""
    nodes, ranks = machines.nodes, machines.ranks_per_node
    if machines.ranks == 1:
        return [
            "start:  " + f"rocstar train {path}",
            "several ranks:  " + f"torchrun --standalone --nproc-per-node=N -m rocstar.train {path}",
        ]
    if nodes == 1:
        return ["start:  " + f"torchrun --standalone --nproc-per-node={ranks} -m rocstar.train {path}"]
    start = f"torchrun --nnodes={nodes} --nproc-per-node={ranks} --master-addr=NODE0 --master-port={PORT}"
    return [f"node {node}:  {start} --node-rank={node} -m rocstar.train {path}" for node in range(nodes)] + [
        "NODE0 is the name of node 0; the run directory and the model must be the same on all nodes"
    ]


def _row(name: str, num_bytes: float, text: str) -> str:
    return f"  {name:<12} {_gb(num_bytes):>10}  {text}"


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / GB:,.2f} GB" if num_bytes >= 0.1 * GB else f"{num_bytes / 1e6:,.2f} MB"
