"""Facts of this node for a run. Gathered here, judged in node_checks.py."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rocstar.sandbox.doctor.report import examine
from rocstar.train.record import version

UNLIMITED = resource.RLIM_INFINITY
UNSYNCHRONISED = 0x40
"""STA_UNSYNC of adjtimex(2)."""
INFINIBAND = Path("/sys/class/infiniband")
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """A GPU that torch sees. Bytes."""

    name: str
    free: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort:
    """A port of a network card that can write into another node's memory."""

    device: str
    state: str
    """As the kernel has it: `4: ACTIVE`."""
    rate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """This node, now. What could not be asked is None."""

    host: str
    time_unix: float
    """When the facts were gathered; who gathers them of several nodes can compare."""
    versions: dict[str, str]
    gpus: list[GpuFacts]
    rdma: list[RdmaPort]
    has_verbs: bool
    """libibverbs can be loaded: without it, collectives of GPUs do not find a card."""
    clock_error_s: float | None
    """The kernel's maximum clock error in seconds; infinity if no service sets the clock."""
    memory_available: int
    shared_memory: int
    """Bytes of /dev/shm that are free."""
    nofile: int
    """Descriptors of a process, by its hard limit; -1 = unlimited."""
    memlock: int
    """Bytes that a process may pin, by its soft limit; -1 = unlimited."""
    scratch: str
    """Where programs have their files."""
    scratch_free: int
    busy_ports: list[int] = field(default_factory=list)
    """The requested ones."""
    isolation: str | None = None
    """The sandbox's tier; None: no pool starts."""
    isolation_why: str = ""


def gather_node(ports: Sequence[int]) -> NodeFacts:
    """Look at this node, for a second or two: a pool of the sandbox is started and ended.

    Args:
        ports: those that something of the run will listen at.
    """
    sandbox = examine()
    started = sandbox.tier != "none" or any(one.active and one.name == "seccomp" for one in sandbox.layers)
    scratch = str(sandbox.facts["scratch_parent"])
    return NodeFacts(
        host=socket.gethostname(),
        time_unix=time.time(),
        versions={
            "rocstar": version.version_of("rocstar") or "unknown",
            "commit": version.commit() or "",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "kernel": platform.release(),
        },
        gpus=list(_gpus()),
        rdma=list(rdma_ports(INFINIBAND)),
        has_verbs=_loads("libibverbs.so.1"),
        clock_error_s=clock_error_s(),
        memory_available=os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        shared_memory=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0,
        nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        scratch=scratch,
        scratch_free=shutil.disk_usage(scratch).free,
        busy_ports=[port for port in ports if not is_free(port)],
        isolation=sandbox.tier if started else None,
        isolation_why=sandbox.why,
    )


def _gpus() -> Iterator[GpuFacts]:
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        yield GpuFacts(name=torch.cuda.get_device_name(number), free=free, total=total)


def rdma_ports(root: Path) -> Iterator[RdmaPort]:
    """Every port below `root`, /sys/class/infiniband or its like."""
    for path in sorted(root.glob("*/ports/*")):
        yield RdmaPort(device=path.parent.parent.name, state=_text(path / "state"), rate=_text(path / "rate"))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def is_free(port: int) -> bool:
    """Whether a process of this user could listen there, on all interfaces."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


class _Timex(ctypes.Structure):
    """The beginning of the kernel's struct timex; the rest is room."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("room", ctypes.c_byte * 256),
    ]


def clock_error_s() -> float | None:
    """Return the kernel's maximum clock error in seconds; infinity if no service sets the clock. Read-only:
    no mode is set."""
    libc = ctypes.CDLL(None, use_errno=True)
    timex = _Timex()
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        return None
    if timex.status & UNSYNCHRONISED:
        return float("inf")
    return float(timex.maxerror) / 1e6
