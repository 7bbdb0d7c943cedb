"""The processes that torchrun started: which learn, which only serve, and how rank 0 reaches them.

    torchrun --role=server --nproc-per-node=1 ...    a node that only serves: one process, without a learner
    torchrun ...                                     a node that learns, with any other role

The ranks that learn come first, 0 to `learners` - 1, so their nodes have the first --node-rank. Collectives
join only these; a node that only serves hears of rank 0 through torchrun's store.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rocstar.train.learner.store_channel import BEAT_S, SILENT_S, Leader, StoreChannel
from rocstar.train.recipe.errors import ConfigError, TrainingStopped

CUBLAS_WORKSPACE = ":4096:8"
"""Eight buffers of 4 MiB for each handle, one of the two values with which cuBLAS is deterministic."""


@contextlib.contextmanager
def deterministic_torch(wanted: bool, device: torch.device) -> Iterator[None]:
    """Inside, equal inputs give equal bits: on a CPU with equally many threads, on a GPU of one model.

    For the whole process. On a GPU the variable CUBLAS_WORKSPACE_CONFIG stays set; a value that the user
    chose is kept. cuBLAS reads it when its first handle is made, so enter before the first product.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # a module of properties, of which types know nothing
    filled = memory.fill_uninitialized_memory
    if wanted:
        on_gpu = device.type == "cuda"
        if on_gpu:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
        torch.use_deterministic_algorithms(True, warn_only=not on_gpu)
        # Else each new tensor is filled before it is written, for the sake of who would read it unwritten.
        memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned_only)
        memory.fill_uninitialized_memory = filled


JOIN_TIMEOUT = timedelta(hours=1)
"""The time every rank has to be there. Rank 0 comes after it has read, and maybe downloaded, the data."""
COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""Timeout of one collective, which begins after rank 0's call: it covers only work of the learner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """How many processes do what, on all nodes."""

    learners: int
    servers: int
    serves: bool
    """This process only serves."""
    learners_per_node: int
    """0 where this process cannot know: on a node that only serves."""

    @staticmethod
    def of(environment: Mapping[str, str] = os.environ) -> Roles:
        """Without torchrun one process learns. ConfigError for another form of torchrun's environment."""
        size = int(environment.get("WORLD_SIZE", "1"))
        alike = int(environment.get("ROLE_WORLD_SIZE", str(size)))
        serves = environment.get("ROLE_NAME") == "server"
        local = int(environment.get("LOCAL_WORLD_SIZE", str(size)))
        learners = size - alike if serves else alike
        if serves and (not learners or local > 1):
            raise ConfigError(
                f"torchrun --role=server with {local} processes here and {learners} that learn elsewhere: a "
                "node that only serves has one process, --nproc-per-node=1, and some other node learns"
            )
        if (int(environment.get("RANK", "0")) >= learners) is not serves:
            raise ConfigError(
                "torchrun --role=server: the nodes that only serve come last; give the nodes that learn the "
                "first numbers, --node-rank=0 and so on"
            )
        return Roles(
            learners=learners, servers=size - learners, serves=serves, learners_per_node=0 if serves else local
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's place among those torchrun started; size 1 without torchrun."""

    rank: int
    size: int
    local_size: int = 1
    """Ranks on this machine."""
    local_rank: int = 0
    leader: Leader | None = None
    """None where there is one rank."""
    servers: int = 0
    """Nodes that only serve, each with one process; these are not among the ranks of `size`."""
    line: StoreChannel | None = None
    """Between rank 0 and those; None on the ranks that learn but 0, and where there are none."""

    @staticmethod
    def join() -> World:
        """Read torchrun's environment and connect: gloo on the CPU, NCCL or RCCL on GPUs.

        A node that only serves joins no group: it hears of rank 0 through the store alone.

        TrainingStopped: after JOIN_TIMEOUT a rank has not come, for it could not begin. ConfigError: see
        Roles.
        """
        roles = Roles.of()
        size = roles.learners
        if size + roles.servers == 1:
            return World(rank=0, size=1)
        if roles.servers and (roles.serves or size == 1):
            # No collectives here: this process only serves, or learns alone.
            rank = int(os.environ["RANK"])
            line = _line(_all_here(rank, size + roles.servers), rank, roles)
            return World(rank=rank, size=size, servers=roles.servers, line=line)
        if (device := local_device()).type == "cuda":
            torch.cuda.set_device(device)
        rank = int(os.environ["RANK"])
        any_dist: Any = dist  # torch has no types for its stores
        all_here = _all_here(rank, size + roles.servers)
        leader = Leader(all_here, beat_s=BEAT_S, silent_s=SILENT_S)
        if rank == 0:
            leader.heart.begin()
        store = any_dist.PrefixStore("group", all_here)
        dist.init_process_group(
            collective_backend(), store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT
        )
        return World(
            rank=rank,
            size=size,
            local_size=int(os.environ["LOCAL_WORLD_SIZE"]),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            leader=leader,
            servers=roles.servers,
            line=_line(all_here, rank, roles),
        )

    @property
    def only_serves(self) -> bool:
        """This process has no part of the learner."""
        return self.rank >= self.size

    @property
    def has_nodes(self) -> bool:
        """There are several, and the first rank of each rolls out (nodes.py)."""
        return self.local_size < self.size or self.servers > 0

    def threads(self, wanted: int, *, alone: bool = False) -> int:
        """torch threads of this process: `wanted`, or for 0 its share of the machine; all of it when `alone`.

        torchrun sets OMP_NUM_THREADS=1 and so hides what torch would take: a cold start on rank 0 alone
        must take the same as one process, or its rounding differs.
        """
        if wanted or self.size == 1:
            return wanted or torch.get_num_threads()
        return num_cores() if alone else max(1, num_cores() // self.local_size)

    def leave(self) -> None:
        if self.line is not None:
            self.line.stop()
        if self.leader is not None:
            self.leader.heart.stop()
        if dist.is_initialized():
            dist.destroy_process_group()

    def called(self) -> None:
        """Begin a collective that rank 0 leads: it calls, and the others wait for the call."""
        if self.leader is None:
            return
        if self.rank == 0:
            self.leader.call()
        else:
            self.leader.await_call()

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank and every node that only serves. LeaderLost: rank 0 is gone."""
        if self.line is not None:
            if self.only_serves:
                return self.line.hear()
            self.line.tell(value)
        if self.size == 1:
            return value
        self.called()
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value by rank, on rank 0; empty on the others."""
        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, found, dst=0)
        return found or []


def _all_here(rank: int, size: int) -> Any:
    """torchrun's store, when every rank has come to it."""
    any_dist: Any = dist
    try:
        store, _, _ = next(any_dist.rendezvous("env://", rank, size, timeout=JOIN_TIMEOUT))
        store.set(f"here/{rank}", "")
        store.wait([f"here/{other}" for other in range(size)], JOIN_TIMEOUT)
    except any_dist.DistError as error:
        raise TrainingStopped(
            f"not all of the {size} ranks came within {JOIN_TIMEOUT.total_seconds():.0f} s; the output of "
            f"those that did not says why, or torchrun was not started on every node ({error})"
        ) from None
    store.set_timeout(COLLECTIVE_TIMEOUT)
    return store


def _line(store: Any, rank: int, roles: Roles) -> StoreChannel | None:
    if not roles.servers or (rank and not roles.serves):
        return None
    return StoreChannel(store, rank=rank, servers=range(roles.learners, roles.learners + roles.servers))


def num_cores() -> int:
    """Physical cores this process may use: what torch takes by default."""
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    paths = [Path(siblings.format(cpu)) for cpu in os.sched_getaffinity(0)]
    return len({path.read_text() if path.is_file() else str(path) for path in paths})


def local_device() -> torch.device:
    """Where this process learns: the GPU of its LOCAL_RANK, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def collective_backend() -> str:
    """Verbs and sums travel as CPU objects also where the weights are on GPUs."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
