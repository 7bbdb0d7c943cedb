"""`--dry-run`: what a recipe will do, in numbers, without building anything.

stages | the world: ranks and nodes | memory per rank, by arithmetic | GPUs of a node | launch commands
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from rocstar.train.learner.model_size import ModelSize, gigabytes, measure
from rocstar.train.learner.model_size import memory_row as row
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.serving.backend import backend_of
from rocstar.train.serving.placement import num_learner_gpus

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
    def parse(text: str | None, engine: EngineConfig | None = None) -> Machines:
        """`8x8`, or for None what torchrun says, else one process.

        Args:
            text: nodes and GPUs of each; of a node without GPUs, processes that learn.
            engine: its servers that have GPUs of their own leave the learner the others.

        Raises:
            ConfigError: another form, or GPUs that such a node does not have.
        """
        if text is None:
            ranks = int(os.environ.get("WORLD_SIZE", "1"))
            local = int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks)))
            return Machines(nodes=max(1, ranks // local), ranks_per_node=local)
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if not match:
            raise ConfigError(f"--world {text!r} is not NODESxGPUS; 8x8 is eight nodes of eight GPUs")
        gpus = int(match[2])
        ranks = gpus if engine is None else num_learner_gpus(engine, gpus)
        return Machines(nodes=int(match[1]), ranks_per_node=ranks)


def describe(recipe: Recipe, path: str, machines: Machines) -> str:
    """The plan as comments of TOML, to be printed under the recipe."""
    size = measure(recipe.model, recipe.lora)
    memory = [f"memory: not known, for {size}"] if isinstance(size, str) else _learner(recipe, size, machines)
    ranks, ranks_per_node = machines.ranks, machines.ranks_per_node
    engine = backend_of(recipe).plan(recipe, size, ranks=ranks, ranks_per_node=ranks_per_node)
    lines = [*_stages(recipe), "", *memory, *engine, "", *_launch(path, machines)]
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
    rows = size.chunk_rows
    text = (
        f"{min(rows)} rows on a CPU, {max(rows)} on a GPU: {gigabytes(max(rows) * size.vocabulary * dtype)}"
    )
    lines.append(row("logits", min(rows) * size.vocabulary * dtype, text))
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
    """What is held where adapters learn alone."""
    count = size.adapters
    return [
        row("weights", size.dtype_bytes * size.parameters, f"{recipe.model.dtype}, frozen"),
        row("adapters", 4 * count, f"float32, {count:,} parameters of rank {recipe.lora.rank}"),
        row("gradients", 4 * count, "float32, of the adapters"),
        row("optimizer", 8 * count, "two moments of AdamW"),
    ]


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
