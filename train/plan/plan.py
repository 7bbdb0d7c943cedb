"""`--dry-run`: the plan of a recipe in numbers, without building anything.

stages | the world: ranks and nodes | memory per rank, by arithmetic | GPUs of a node | launch commands
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rocstar.engine.progress.progress import format_bytes
from rocstar.kernels import chunks
from rocstar.sandbox.extras import shell_command
from rocstar.train.learner.model_io import ModelSize, measure
from rocstar.train.learner.model_io import memory_row as row
from rocstar.train.learner.world import Roles
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.serving.backend import backend_of
from rocstar.train.serving.placement import engine_of_serving_node, num_learner_gpus, recipe_of_serving_node

PORT = 29500
VARIABLES = (
    *("PYTHONPATH", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE"),
    *("ROCSTAR_DATA_DIR", "ROCSTAR_SGLANG_PYTHON", "WANDB_MODE"),
)
"""Environment variables that change a run and are put before a printed command; none holds a secret."""
MOST_OF_A_WORLD = 100_000
"""Nodes, or GPUs of one: more is a slip of the fingers, and a plan has a line for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Where a run is to go: so many nodes, so many ranks on each; and nodes that only serve."""

    nodes: int = 1
    """Those that learn."""
    ranks_per_node: int = 1
    serving_nodes: int = 0
    serving_gpus: int = 0
    """GPUs of each node that only serves; 0: none, or only torchrun knows of such nodes."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def all_nodes(self) -> int:
        return self.nodes + self.serving_nodes

    def num_servers(self, engine: EngineConfig) -> int:
        """Engines on all nodes, on those of unknown GPUs as many as on the others. ConfigError: a node that
        only serves has no room for one."""
        if not self.serving_gpus:
            return self.all_nodes * engine.num_replicas
        there = engine_of_serving_node(engine, self.serving_gpus).num_replicas
        return self.nodes * engine.num_replicas + self.serving_nodes * there

    @staticmethod
    def parse(text: str | None, engine: EngineConfig | None = None) -> Machines:
        """`8x8`, or `3x8+5x8` of which the last five nodes only serve; for None torchrun's, else one
        process.

        Args:
            text: nodes and GPUs of each; of a node without GPUs, processes that learn.
            engine: its servers that have GPUs of their own leave the learner the others.

        Raises:
            ConfigError: another form, or GPUs that such a node does not have.
        """
        if text is None:
            roles = Roles.of()
            local = roles.learners_per_node or roles.learners
            nodes = max(1, roles.learners // local)
            return Machines(nodes=nodes, ranks_per_node=local, serving_nodes=roles.servers)
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(?:\+([1-9]\d*)x([1-9]\d*))?", text)
        if not match:
            raise ConfigError(
                f"--world {text!r} is not NODESxGPUS; 8x8 is eight nodes of eight GPUs, and 3x8+5x8 as many "
                "of which five only serve"
            )
        gpus = int(match[2])
        if max(int(number or 0) for number in match.groups()) > MOST_OF_A_WORLD:
            raise ConfigError(f"--world {text!r} has a number above {MOST_OF_A_WORLD}; give a smaller one")
        ranks = gpus if engine is None else num_learner_gpus(engine, gpus)
        return Machines(
            nodes=int(match[1]),
            ranks_per_node=ranks,
            serving_nodes=int(match[3] or 0),
            serving_gpus=int(match[4] or 0),
        )


def describe_plan(recipe: Recipe, words: Sequence[str], machines: Machines) -> list[str]:
    """Return the lines of the plan; `words`: the arguments that start the run, as `launch_commands` takes."""
    size = measure(recipe.model, recipe.lora)
    memory = [f"memory: not known, for {size}"] if isinstance(size, str) else _learner(recipe, size, machines)
    ranks, ranks_per_node = machines.ranks, machines.ranks_per_node
    engine = backend_of(recipe).plan(recipe, size, ranks=ranks, ranks_per_node=ranks_per_node)
    engine += _serving(recipe, size, machines)
    commands = launch_commands(words, machines)
    launch = [f"node {node}:  {command}" for node, command in enumerate(commands)]
    launch += ["NODE0 is the name of node 0; the run directory and the model must be the same on all nodes"]
    if len(commands) == 1:
        launch = [f"start:  {commands[0]}", "for N GPUs, or several machines:  --dry-run --world NODESxN"]
    launch.append("to rehearse the learner's memory on a GPU of M GiB:  --dry-run --gpu-memory-gb M")
    return [line.rstrip() for line in (*_stages(recipe), "", *memory, *engine, "", *launch)]


def _stages(recipe: Recipe) -> list[str]:
    rl = recipe.rl
    rollouts = rl.tasks_per_step * rl.rollouts_per_task
    refills = f", and as many in each of {rl.refill} rounds of rl.refill at most" if rl.refill else ""
    branches = f", and {rollouts * rl.most_branches} branches of rl.fork at most" if rl.most_branches else ""
    lines = [
        f"{recipe.run.name}: {recipe.sft.steps} SFT steps, {sum(s.steps for s in recipe.stages)} RL steps",
        f"per RL step: {rl.tasks_per_step} tasks x {rl.rollouts_per_task} rollouts = {rollouts} "
        f"trajectories{branches}{refills}, {rl.group_size} kept per task (RoC {rl.roc_mode}), "
        f"{rl.num_updates_per_batch} optimizer steps",
        f"loss: {' '.join([rl.loss, *(f'{name}={value}' for name, value in rl.constants().items())])}",
        "stage           steps  response tokens  turns  filter  worst-case tokens per step",
    ]
    for stage in recipe.stages:
        behind_forks = rl.most_branches * stage.max_response_tokens
        behind_forks = min(rl.fork_tokens or behind_forks, behind_forks)
        worst = rollouts * (1 + rl.refill) * (stage.max_response_tokens + behind_forks)
        lines.append(
            f"{stage.name:<14} {stage.steps:>6}  {stage.max_response_tokens:>15,}  {stage.max_turns:>5}  "
            f"{stage.filter_rollouts or '-':>6}  {worst:>26,}"
        )
    return lines


def _learner(recipe: Recipe, size: ModelSize, machines: Machines) -> list[str]:
    """Return the memory of every rank, without activations."""
    ranks, dtype, params = machines.ranks, size.dtype_bytes, size.parameters
    if recipe.model.sharding == "node":
        ranks = machines.ranks_per_node
    lines = [f"memory per rank, {machines.ranks} of them, by arithmetic ({params:,} parameters):"]
    if size.adapters:
        lines += _adapters(recipe, size)
    else:
        lines += [
            row("weights", 4 * params / ranks, "float32" + (f", a {ranks}th of them" if ranks > 1 else "")),
            row("gradients", 4 * params / ranks, "float32"),
            row("optimizer", 8 * params / ranks, "two moments of AdamW"),
        ]
    if not size.adapters and (machines.ranks > 1 or dtype < 4):
        whole = size.root_parameters + size.layer_parameters
        text = f"embedding, head and one layer whole, with gradients, {recipe.model.dtype}"
        lines.append(row("gathered", 2 * dtype * whole, text))
    row_bytes = size.vocabulary * dtype
    if recipe.model.head_dtype == "float32" and dtype < 4:
        row_bytes += 4 * size.vocabulary  # and their gradient in the model's type
    least, most = (format_bytes(rows * row_bytes) for rows in (chunks.LEAST_ROWS, chunks.MOST_ROWS))
    text = f"{chunks.ROWS_CPU} rows on a CPU; on a GPU half of the free memory, and from {least} to {most}"
    lines.append(row("logits", chunks.ROWS_CPU * row_bytes, text))
    if not size.adapters:
        lines.append(row("head", 4 * size.vocabulary * size.hidden, "its gradient, added up in float32"))
    tokens, choice = recipe.rl.tokens_per_microbatch, recipe.model.activation_checkpointing
    again = f"where layers keep their input alone and are run again, of {tokens:,} tokens"
    if choice != "on":
        lines.append(row("activations", tokens * size.kept_per_token, f"of {tokens:,} tokens"))
    if choice != "off":
        text = again + (" ('auto': where the rest does not fit)" if choice == "auto" else "")
        lines.append(row("kept inputs", tokens * size.kept_inputs_per_token, text))
    return lines


def _adapters(recipe: Recipe, size: ModelSize) -> list[str]:
    """Return the memory if only adapters are trained."""
    count = size.adapters
    return [
        row("weights", size.dtype_bytes * size.parameters, f"{recipe.model.dtype}, frozen"),
        row("adapters", 4 * count, f"float32, {count:,} parameters of rank {recipe.lora.rank}"),
        row("gradients", 4 * count, "float32, of the adapters"),
        row("optimizer", 8 * count, "two moments of AdamW"),
    ]


def _serving(recipe: Recipe, size: ModelSize | str, machines: Machines) -> list[str]:
    """The nodes that only serve."""
    if not machines.serving_nodes:
        return []
    first, last = machines.nodes, machines.all_nodes - 1
    named = recipe.engine.replicas
    if not machines.serving_gpus and not isinstance(named, int):
        recipe_of_serving_node(recipe, len(named[0]))  # it could be
        each = f"as many servers of {len(named[0])} GPUs as it has room for"
        return ["", f"node {first} to {last}, which only serve: on each {each}"]
    alone = recipe_of_serving_node(recipe, machines.serving_gpus)
    lines = backend_of(alone).plan(alone, size, ranks=machines.ranks, ranks_per_node=0)
    return ["", f"node {first} to {last}, which only serve:", *(line for line in lines if line)]


def launch_commands(words: Sequence[str], machines: Machines) -> list[str]:
    """Return the command that starts a run on each node; `words` are `train` or `sft`, recipe and options."""
    nodes, ranks = machines.all_nodes, machines.ranks_per_node
    module = ["-m", "rocstar.train", *(words[1:] if words[0] == "train" else words)]
    if nodes == 1 and ranks == 1:
        return [shell_command(*words, variables=VARIABLES)]
    if nodes == 1:
        launcher = [["--standalone", f"--nproc-per-node={ranks}"]]
    else:
        each = [[f"--nproc-per-node={ranks}"]] * machines.nodes
        each += [["--nproc-per-node=1", "--role=server"]] * machines.serving_nodes
        host, port = os.environ.get("MASTER_ADDR", "NODE0"), os.environ.get("MASTER_PORT", PORT)
        shared = [f"--nnodes={nodes}", f"--master-addr={host}", f"--master-port={port}"]
        launcher = [[*shared, *kind, f"--node-rank={node}"] for node, kind in enumerate(each)]
    return [shell_command(*one, *module, program="torchrun", variables=VARIABLES) for one in launcher]
