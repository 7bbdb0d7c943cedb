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
from rocstar.train.learner.checkpoint import checkpoint_bytes
from rocstar.train.learner.model_size import ModelSize
from rocstar.train.plan.plan import Machines
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.rehearsal.rows import PackedStep, RowLengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Bytes and FLOPs per second of one GPU, its node and the shared disk. As the simulator has an MI300X."""

    weights_read: float = 4.2e12
    """From the GPU's memory, by a decoding step."""
    kv_read: float = 3.7e12
    prefill_flops: float = 0.6e15
    attention_flops: float = 1.6e15
    learn_flops: float = 0.4e15
    """The share of peak FLOPs of forward and backward, attention included."""
    node_network: float = 50e9
    """Into or out of a node, all its links together: 400 Gbit/s."""
    gpu_links: float = 50e9
    """From one GPU to the others of its node, for a collective."""
    disk_write: float = 2e9
    """One process that writes one file to the shared disk."""
    disk_read: float = 10e9
    """The shared disk, to all who read."""
    host_copy: float = 20e9
    """From a GPU into the memory of its host."""
    launch_s: float = 1.5e-3
    """Seconds of a decoding step besides reading memory."""
    request_s: float = 20e-6
    server_start_s: float = 45.0
    """A server's process until it loads weights, graphs included."""


HARDWARE = Hardware()


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


def generate_s(rows: Sequence[RowLengths], cost: CostModel, *, kv_tokens: int, replicas: int, tool_s: float) -> float:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Bytes of one publish to one server, and of one checkpoint; seconds of each part."""

    publish_bytes: int
    checkpoint_bytes: int
    gather_s: float
    """Gather all ranks' shards into one complete copy of the served weights."""
    publish_s: float
    """Until every server has the weights, the gathering included: beside a broadcast, before a file."""
    checkpoint_s: float
    """While the learner waits: the copy to the host."""
    checkpoint_write_s: float
    """In the background."""


def transfers(size: ModelSize, engine: EngineConfig, machines: Machines, hardware: Hardware) -> Transfers:
    """The transfers of publishing and saving weights, by `engine.publish` and `engine.placement`."""
    whole = (size.dtype_bytes if size.adapters else 4) * size.parameters
    served = size.dtype_bytes * size.parameters
    links = hardware.gpu_links if machines.nodes == 1 else hardware.node_network
    parted = machines.ranks > 1 and not size.adapters
    gather_s = served / links if parted else 0.0
    delivered_s, readers = 0.0, machines.num_servers(engine)
    if engine.kind == "embedded":
        delivered_s, readers = served / hardware.weights_read, 0
    elif engine.publish == "broadcast":  # one bucket is sent while the next is gathered
        delivered_s = max(0.0, served / hardware.node_network - gather_s)
        readers -= machines.nodes * engine.num_replicas  # the rest are nodes that only serve
    if readers:
        delivered_s += served / hardware.disk_write + readers * served / hardware.disk_read
    if engine.kind != "embedded" and engine.placement == "restart":
        delivered_s += hardware.server_start_s
    saved = checkpoint_bytes(size.parameters, size.adapters, size.dtype_bytes)
    moments = 8 * (size.adapters or size.parameters)
    return Transfers(
        publish_bytes=served,
        checkpoint_bytes=saved,
        gather_s=gather_s,
        publish_s=gather_s + delivered_s,
        checkpoint_s=(whole / links if parted else 0.0) + (whole + moments / machines.ranks) / hardware.host_copy,
        checkpoint_write_s=max(whole, moments / machines.ranks) / hardware.disk_write,
    )
