"""The machines that a rehearsal assumes. Stated, not measured: all its times follow from these."""

from __future__ import annotations

from dataclasses import dataclass


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
