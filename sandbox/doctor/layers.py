"""The isolation layers of a pool and the limits of the machine, with the reason and the fix for each fault.

A trial pool reports which layers are active. The facts of the machine explain why others are absent.
"""

import re
import resource
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

SIGNAL_SCOPE_ABI = 6
TRUNCATE_ABI = 3

KEPT = {
    **{"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5},
    **{"SYS_PTRACE": 19, "SYS_NICE": 23, "SYS_RESOURCE": 24},
}
"""Capabilities that a supervisor needs, by name: their numbers (csrc/sandbox/guard.h)."""
PROTECTIONS = ("stack_protector", "fortify", "assertions", "control_flow", "pie", "relro_now")
"""Protections of a supervisor's build, by the names that it reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPool:
    """The report of the trial pool. error: the reason if none started; the other fields are then empty.

    scratch: True if programs have scratch directories. built: protections of the supervisor's build. status:
    lines of its /proc/PID/status, by name.
    """

    isolation: frozenset[str] = frozenset()
    tier: str = "none"
    scratch: bool = False
    error: str = ""
    built: frozenset[str] = frozenset()
    status: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer. name: as in `ExecResult.isolation`, or a feature that depends on layers. cost, reason: the
    effect and the cause of its absence. fix: the remedy. All three are "" for an active layer."""

    name: str
    active: bool
    _: KW_ONLY
    required: bool = False
    detail: str
    cost: str = ""
    reason: str = ""
    fix: str = ""


_TEXTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("layers.toml").read_text(encoding="utf-8"))
_PROBLEMS: dict[str, list[dict[str, Any]]] = {name: texts.pop("problems", []) for name, texts in _TEXTS.items()}


def _problem(name: str, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return reason and fix of the first problem of a layer whose facts hold; both are "" if none does."""
    options = " ".join(f"--cap-add {capability}" for capability in facts["lacks"])
    known = {**facts, "missing": ", ".join(facts["lacks"]), "options": options}
    for one in _PROBLEMS[name]:
        if all(map(facts.get, one["if"])) and not any(map(facts.get, one["unless"])):
            return {key: one[key].format(**known) for key in ("reason", "fix")}
    return {"reason": "", "fix": ""}


def _layer(name: str, active: bool, **own: Any) -> Layer:
    """Return a layer with the texts of layers.toml. own: texts that depend on the machine."""
    return Layer(name, active, **_TEXTS[name], **own)


def layers_of(started: TrialPool, facts: Mapping[str, Any]) -> Iterator[Layer]:
    """Yield all layers, the most important first. Without a pool the facts decide which are active."""
    known = bool(started.isolation)
    has = started.isolation
    yield _layer("seccomp", "seccomp" in has if known else facts["seccomp"])
    yield _layer("nnp", True)
    yield _layer("rlimits", True)
    yield landlock_layer("landlock" in has if known else facts["landlock_abi"] > 0, facts)
    uid = _problem("uid", facts)
    yield _layer("uid", "uid" in has if known else not uid["reason"], **uid)
    yield _layer("notify", facts["user_notif"] and facts["seccomp"])
    yield _layer(
        "scratch",
        started.scratch,
        detail=f"a directory of its own for every program, below {facts['scratch_parent']}",
        reason="it needs landlock and notify" if not started.error else "no pool started",
    )
    yield _layer("namespaces", "namespaces" in has, **_problem("namespaces", facts))
    detail = f"a control group for the pool's memory ({facts['cgroup'] or 'none mounted'})"
    yield _layer("cgroup", "cgroup" in has, detail=detail, **_problem("cgroup", facts))
    yield from supervisor_layers(started)


def supervisor_layers(started: TrialPool) -> Iterator[Layer]:
    """Yield the layers that confine the supervisor, which reads the output of hostile programs, and whether
    its programs share users with another pool."""
    known, status = bool(started.status), started.status
    no_pool = "no pool started" if not known else ""
    missing = [name for name in PROTECTIONS if name not in started.built]
    yield _layer(
        "supervisor build",
        known and not missing,
        detail=f"protections of its build: {', '.join(sorted(started.built)) or 'none'}",
        reason=no_pool or f"it was built without {', '.join(missing)}",
    )
    held = int(status.get("CapPrm", "0"), 16)
    kept = [name for name, bit in KEPT.items() if held >> bit & 1]
    others = held & ~sum(1 << bit for bit in KEPT.values())
    yield _layer(
        "supervisor caps",
        known and not others,
        detail=f"its capabilities: {', '.join(kept) or 'none'}",
        reason=no_pool or f"it has others, {others:#x}",
    )
    yield _layer("supervisor nnp", status.get("NoNewPrivs") == "1", reason=no_pool or "it did not set it")
    yield _layer(
        "supervisor filter",
        status.get("Seccomp") == "2",
        reason=no_pool or "it has none, as one that was built with a sanitizer",
    )
    if "uid" in started.isolation:
        yield _layer("users", "shared_users" not in started.isolation)


def landlock_layer(active: bool, facts: Mapping[str, Any]) -> Layer:
    abi = facts["landlock_abi"]
    gains = [
        text
        for least, text in (
            (SIGNAL_SCOPE_ABI, "no signals or abstract sockets to others"),
            (TRUNCATE_ABI, "truncation by path"),
        )
        if abi >= least
    ]
    return _layer(
        "landlock",
        active,
        detail="; ".join([f"ABI {abi}: reads only below Python and the system's libraries", *gains]),
        reason="the kernel was built or booted without Landlock" if abi == 0 else "the pool left it out",
    )


# --- limits of the machine ---------------------------------------------------------------------------------

SMALL_PID_MAX = 1 << 16
SMALL_NOFILE = 4096
SMALL_NPROC = 4096
SMALL_PIDS = 4096
COLLAPSE_KERNEL = (6, 1)


@dataclass(frozen=True, slots=True)
class MachineLimit:
    """A limit of the machine that affects a pool. note: its problem, or "". fix: "" in a report without a
    note."""

    name: str
    value: str
    note: str = ""
    fix: str = ""


def limits_of(facts: Mapping[str, Any]) -> Iterator[MachineLimit]:
    pid_max = facts["pid_max"]
    few = f"at most {pid_max} processes and threads on the machine, sessions included"
    note = few if 0 < pid_max < SMALL_PID_MAX else ""
    yield MachineLimit("pid_max", str(pid_max), note, "sysctl kernel.pid_max=4194304")
    if pids := facts["pids"]:
        note = f"at most {pids} processes and threads, sessions included" if pids < SMALL_PIDS else ""
        yield MachineLimit("pids", str(pids), note, f"a container: `--pids-limit {4 * SMALL_PIDS}`")
    for name, small, use in (
        ("nproc", SMALL_NPROC, "programs and sessions count as this user's processes"),
        ("nofile", SMALL_NOFILE, "a live program takes four descriptors"),
    ):
        is_unlimited = (value := facts[name]) == resource.RLIM_INFINITY
        note = use if not is_unlimited and value < small else ""
        shown = "unlimited" if is_unlimited else str(value)
        yield MachineLimit(name, shown, note, f"raise `ulimit` ({name}) to {small} or more")
    yield MachineLimit("memory", f"{facts['memory_bytes'] / 2**30:.1f} GiB for all programs together")
    pages = facts["huge_pages"]
    yield MachineLimit(
        "huge pages",
        pages or "none",
        "" if pages in ("madvise", "always") else "a fork of a large flavour costs about twice as much",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )
    is_old = tuple(map(int, re.findall(r"\d+", facts["kernel"])[:2])) < COLLAPSE_KERNEL
    note = "heaps cannot be gathered into huge pages" if is_old else ""
    yield MachineLimit("kernel", facts["kernel"], note, "boot Linux 6.1 or newer")
    absent = "; ".join(facts["flavours_left_out"])
    yield MachineLimit("flavours", ", ".join(facts["flavours"]), absent, "run the command that the note names")
    copies = ", ".join(facts["working_copies"])
    unread = f"of {copies} programs read no data file, and import nothing that was not imported before"
    yield MachineLimit(
        "packages",
        "working copies among them" if copies else "all can be read",
        unread if copies else "",
        "install it without `-e` (beside a PYTHONPATH: with `--target`), or leave it out of the .pth file",
    )
    free = facts["scratch_free_bytes"]
    yield MachineLimit("scratch", f"{free / 2**30:.1f} GiB free", "little room" if free < 1 << 30 else "", "free some")
