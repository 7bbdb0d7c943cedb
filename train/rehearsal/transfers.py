"""Bytes of a publish and of a checkpoint, and how long they take at stated bandwidths. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rocstar.train.learner.checkpoint import checkpoint_bytes
from rocstar.train.learner.model_size import ModelSize
from rocstar.train.plan.plan import Machines
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.rehearsal.hardware import Hardware


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
        checkpoint_s=(whole / links if parted else 0.0)
        + (whole + moments / machines.ranks) / hardware.host_copy,
        checkpoint_write_s=max(whole, moments / machines.ranks) / hardware.disk_write,
    )
