"""Whether a node is fit for a run: facts and needs in, one line per subject out, with its fix. Pure."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rocstar.sandbox.extras import shell_command
from rocstar.train.plan.node_facts import UNLIMITED, NodeFacts

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
        *_gpus(facts, gpus),
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


def _gpus(facts: NodeFacts, wanted: int | None) -> Iterator[NodeCheck]:
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
