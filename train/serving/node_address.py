"""Where a node serves the groups that it is granted."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass

START_TIMEOUT_S = 3600.0
"""The time every node has to have loaded its model, or started its servers, and opened its sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """Where the node of a rank serves."""

    rank: int
    url: str


def http_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def own_address(master: str | None = None, port: int = 9) -> str:
    """Return this machine's address for other nodes: that of the interface that leads to rank 0.

    On rank 0's own machine MASTER_ADDR may be its name and resolve to loopback. Nothing is sent.
    """
    host = master or os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        found: str = probe.getsockname()[0]
    ipaddress.ip_address(found)
    return found
