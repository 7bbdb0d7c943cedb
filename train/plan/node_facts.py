"""Facts of this node for a run, and whether they make it fit: one line per subject, with its fix."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import platform
import resource
import shutil
import socket
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import torch

from rocstar.sandbox.doctor.report import examine
from rocstar.sandbox.extras import shell_command
from rocstar.train.record.manifest import commit, version_of

GIB = 1 << 30
FREE_SHARE = 0.95
"""Share of a GPU's memory that must be free: a driver keeps a little."""
CLOCK_S = 1.0
SHM_BYTES = GIB
"""Shared memory for each rank: RCCL and NCCL pass data between the GPUs of a node through it."""
SCRATCH_BYTES = GIB
NOFILE = 16_384
"""A sandbox has half a dozen descriptors for each session, a service one for each connection."""
OLDEST_TORCH = (2, 11)


class Fitness(StrEnum):
    """The result of a check; later ones are worse."""

    fit = "ok"
    thin = "warning"
    """The run works, but slowly, or it may fail later."""
    unfit = "problem"
    """The run would not begin, or would end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """One respect. `fix` is empty where it is fit."""

    name: str
    fitness: Fitness
    found: str
    fix: str = ""


def check_node(
    facts: NodeFacts, *, nodes: int = 1, gpus: int | None = None, recipe_problems: Sequence[str] = ()
) -> list[NodeCheck]:
    """Return all checks, those that end a run first.

    Args:
        facts: the facts of this node.
        nodes: the number of nodes of the run.
        gpus: the number of GPUs that the recipe names; None without a recipe.
        recipe_problems: missing requirements of engine, tools, reward and disk, each with its fix.
    """
    shared_memory = SHM_BYTES * len(facts.gpus)
    is_pin_limited = facts.memlock != UNLIMITED
    uses_rdma = nodes > 1 and bool(facts.rdma) and bool(facts.gpus)
    few_descriptors = facts.nofile != UNLIMITED and facts.nofile < NOFILE
    return [
        *_check_gpus(facts, gpus),
        _rdma(facts, nodes),
        _clock(facts, nodes),
        _verdict(
            "ports",
            f"in use: {', '.join(map(str, facts.busy_ports))}" if facts.busy_ports else "free",
            bad=Fitness.unfit if facts.busy_ports else None,
        ),
        _verdict(
            "sandbox",
            facts.isolation_why if facts.isolation is None else f"tier {facts.isolation}: {facts.isolation_why}",
            bad=Fitness.unfit if facts.isolation is None else None,
            fix=f"{shell_command('sandbox', 'doctor')} shows each layer",
        ),
        _verdict(
            "scratch",
            f"{facts.scratch_free / GIB:.1f} GiB free in {facts.scratch}",
            bad=Fitness.thin if facts.scratch_free < SCRATCH_BYTES else None,
        ),
        _verdict(
            "shared memory",
            f"{facts.shared_memory / GIB:.1f} GiB free in /dev/shm",
            bad=Fitness.thin if facts.shared_memory < shared_memory else None,
        ),
        _verdict(
            "descriptors",
            "unlimited" if facts.nofile == UNLIMITED else f"{facts.nofile:,} a process",
            bad=Fitness.thin if few_descriptors else None,
            fix=f"raise the hard limit to {NOFILE:,} or more (ulimit -Hn, LimitNOFILE=, --ulimit nofile=)",
        ),
        _verdict(
            "pinned memory",
            f"{facts.memlock / GIB:.2f} GiB a process" if is_pin_limited else "unlimited",
            bad=Fitness.unfit if is_pin_limited and uses_rdma else None,
        ),
        _torch(facts),
        *(
            _verdict("recipe", found, bad=Fitness.unfit, fix=fix or "see the field that it names")
            for found, _, fix in (problem.partition("; ") for problem in recipe_problems)
        ),
    ]


def exit_code(checks: list[NodeCheck]) -> int:
    """0 fit, 1 with warnings, 2 not fit."""
    return max((list(Fitness).index(one.fitness) for one in checks), default=0)


_FIXES = tomllib.loads(Path(__file__).with_name("node_fixes.toml").read_text(encoding="utf-8"))


def _verdict(name: str, found: str, *, bad: Fitness | None = None, fix: str = "") -> NodeCheck:
    return NodeCheck(name=name, fitness=bad or Fitness.fit, found=found, fix=(fix or _FIXES[name]) if bad else "")


def _check_gpus(facts: NodeFacts, wanted: int | None) -> Iterator[NodeCheck]:
    num = len(facts.gpus)
    if wanted is not None and num < wanted:
        yield _verdict(
            "gpus", f"torch sees {num}, the recipe names {wanted}", bad=Fitness.unfit, fix=_FIXES["few gpus"]
        )
        return
    if not num:
        yield _verdict("gpus", "none that torch sees: ranks learn on the CPU")
        return
    names = sorted({gpu.name for gpu in facts.gpus})
    yield _verdict("gpus", f"{num} x {' and '.join(names)}", bad=Fitness.thin if len(names) > 1 else None)
    taken = [k for k, gpu in enumerate(facts.gpus) if gpu.free < FREE_SHARE * gpu.total]
    least = min(gpu.free for gpu in facts.gpus)
    yield _verdict(
        "gpu memory",
        f"{least / GIB:.1f} GiB free at least, of {facts.gpus[0].total / GIB:.1f}"
        + (f"; in use on GPU {', '.join(map(str, taken))}" if taken else ""),
        bad=Fitness.unfit if taken else None,
    )


def _rdma(facts: NodeFacts, nodes: int) -> NodeCheck:
    active = [port for port in facts.rdma if "ACTIVE" in port.state]
    found = f"{len(active)} of {len(facts.rdma)} ports active" + (
        f", {active[0].rate}" if active and active[0].rate else ""
    )
    slow = "weights and gradients then go through sockets, some 10 times as slowly"
    fix = ""
    if nodes == 1:
        found += "; one node needs none"
    elif not facts.gpus:
        found += "; without GPUs gloo uses sockets"
    elif not active:
        fix = f"load the card's driver, or give a container --device /dev/infiniband; {slow}"
    elif not facts.has_verbs:
        found += "; libibverbs cannot be loaded"
        fix = f"apt-get install libibverbs1 ibverbs-providers; {slow}"
    return _verdict("rdma", found, bad=Fitness.thin if fix else None, fix=fix)


def _clock(facts: NodeFacts, nodes: int) -> NodeCheck:
    error_s = facts.clock_error_s
    if error_s is None:
        return _verdict("clock", "the kernel does not tell")
    off = error_s > CLOCK_S
    found = "nobody sets it" if math.isinf(error_s) else f"off by {error_s:.3f} s at most"
    return _verdict("clock", found, bad=Fitness.thin if off and nodes > 1 else None)


def _torch(facts: NodeFacts) -> NodeCheck:
    versions = ", ".join(f"{name} {text}" for name, text in facts.versions.items() if text)
    parts = facts.versions["torch"].split("+")[0].split(".")[:2]
    old = all(part.isdecimal() for part in parts) and tuple(map(int, parts)) < OLDEST_TORCH
    return _verdict(
        "versions",
        versions,
        bad=Fitness.unfit if old else None,
        fix=f"install torch {'.'.join(map(str, OLDEST_TORCH))} or newer",
    )


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
            "rocstar": version_of("rocstar") or "unknown",
            "commit": commit() or "",
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
