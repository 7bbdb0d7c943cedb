"""How long the parts of a step take, from the simulator's cost model and stated bandwidths. Pure.

Generating is the lower bound that no schedule beats (engine/sim/bound.py), on the workload whose lengths the
rows have. Learning is arithmetic: FLOPs over FLOP/s, and the packing's waste.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocstar.engine.sim.bound import lower_bound
from rocstar.engine.sim.cost import Cluster, CostModel, ReplicaModel
from rocstar.engine.sim.workload import TrajectoryWork, TurnWork, Workload
from rocstar.train.learner.model_size import ModelSize
from rocstar.train.rehearsal.hardware import Hardware
from rocstar.train.rehearsal.rows import PackedStep, RowLengths
from rocstar.train.rehearsal.transfers import Transfers

BACKWARD = 2.0
"""Backward over forward, in FLOPs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Seconds of one RL step."""

    generate_s: float | None
    """None: the engine is not one whose cost is known."""
    learn_s: float
    publish_s: float
    checkpoint_s: float
    """A step's share of those that are written every so many steps."""


def cost_model(size: ModelSize, attention_flops_per_pair: float, hardware: Hardware, gpus: int) -> CostModel:
    """One replica of the model on so many GPUs."""
    served = size.dtype_bytes * size.parameters
    kv_bytes = size.dtype_bytes * size.kv_values_per_token
    return CostModel(
        forward_s=served / gpus / hardware.weights_read + hardware.launch_s,
        request_s=hardware.request_s,
        context_token_s=kv_bytes / gpus / hardware.kv_read,
        prefill_token_s=2 * size.parameters / gpus / hardware.prefill_flops,
        prefill_pair_s=attention_flops_per_pair / gpus / hardware.attention_flops,
    )


def generate_s(
    rows: Sequence[RowLengths], cost: CostModel, *, kv_tokens: int, replicas: int, tool_s: float
) -> float:
    """The least time of a step's rollouts on so many replicas; `tool_s`: seconds of a call."""
    works = [
        TrajectoryWork(
            traj=str(number),
            group=str(row.task),
            stage="rehearsal",
            prompt_tokens=row.prompt,
            max_tokens=row.tokens,
            turns=tuple(
                TurnWork(new, answer, tool_s if answer else 0.0)
                for new, answer in (*row.turns[:-1], (row.turns[-1][0], 0))
            ),
        )
        for number, row in enumerate(rows)
    ]
    cluster = Cluster(model=ReplicaModel(kv_tokens=max(1, kv_tokens), cost=cost), replicas=replicas)
    return lower_bound(Workload(name="rehearsal", trajectories=tuple(works)), cluster).seconds


def timeline(
    batch: PackedStep,
    moved: Transfers,
    *,
    generate: float | None,
    ranks: int,
    updates: int,
    checkpointing: bool,
    every: int,
    hardware: Hardware,
) -> Timeline:
    """One step. With several updates the later ones' tokens are measured by a forward of their own."""
    forwards = 1 + BACKWARD + (1 if checkpointing else 0) + (updates - 1) / updates
    learn = forwards * batch.flops / (hardware.learn_flops * ranks * max(batch.efficiency, 1e-9))
    return Timeline(
        generate_s=generate,
        learn_s=learn,
        publish_s=moved.publish_s,
        checkpoint_s=moved.checkpoint_s / every if every else 0.0,
    )
