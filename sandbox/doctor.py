"""Which layers hold a program on this machine, what the missing ones cost, and how to get them.

What is active is not guessed: a pool is started and one program runs in it. Probing tells only why the rest
is not there. Whatever a probe changes, it changes in a child process that then ends.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rocstar.sandbox import _native
from rocstar.sandbox.attacks.host import allows_user_namespace
from rocstar.sandbox.extras import installed_flavours, left_out
from rocstar.sandbox.pool.paths import (
    default_scratch_parent,
    is_world_readable,
    python_paths,
    working_copies,
)
from rocstar.sandbox.pool.pool import SandboxPool, default_memory_bytes
from rocstar.sandbox.types import ExecRequest, SandboxError

SLOT_UIDS = (100_000, 32_768)
"""Of the first program's user, and where a user namespace ends below that."""
SIGNAL_SCOPE_ABI = 6
TRUNCATE_ABI = 3
SMALL_PID_MAX = 1 << 16
SMALL_NOFILE = 4096
SMALL_NPROC = 4096
SMALL_PIDS = 4096
COLLAPSE_KERNEL = (6, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What the trial pool said. error: why there was none; then the rest is empty."""

    isolation: frozenset[str] = frozenset()
    tier: str = "none"
    scratch: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """name: as in `ExecResult.isolation`, or what the pool offers because of it. cost: of its absence.
    reason, fix: why it is absent and what would bring it; "" when it is active."""

    name: str
    active: bool
    required: bool
    detail: str
    cost: str = ""
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A limit of the machine that matters to a pool. note: "" when there is nothing to say of it."""

    name: str
    value: str
    note: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    tier: str
    why: str
    layers: list[Layer]
    limits: list[Measure]
    facts: dict[str, Any]


def examine() -> Report:
    """Starts a pool for a moment. Raises nothing: a pool that cannot be is the report's news."""
    return report_of(asyncio.run(try_pool()), gather())


def probe() -> list[Layer]:
    """The layers alone."""
    return examine().layers


async def try_pool() -> Started:
    try:
        async with SandboxPool(max_live=1, max_queued=1) as pool:
            result = await pool.run(ExecRequest(code="import os; os.getcwd()"))
    except SandboxError as error:
        return Started(error=str(error))
    isolation = frozenset(result.isolation.split("+"))
    return Started(isolation=isolation, tier=result.tier, scratch=result.value != "'/'")


def gather() -> dict[str, Any]:
    """Facts of this machine and this user."""
    hidden = [path for path in python_paths() if not is_world_readable(path)]
    native: Mapping[str, Any] = _native.probe()
    return {
        "kernel": native.get("kernel", platform.release()),
        "machine": native.get("machine", platform.machine()),
        "python": platform.python_version(),
        "uid": os.geteuid(),
        "seccomp": bool(native.get("seccomp")),
        "user_notif": bool(native.get("user_notif")),
        "landlock_abi": int(native.get("landlock_abi", 0)),
        "user_namespaces": allows_user_namespace(),
        "apparmor_restricts": read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1",
        "can_change_uid": any(in_child(partial(become, uid)) for uid in SLOT_UIDS),
        "python_hidden": hidden[0] if hidden else "",
        "cgroup": cgroup_version(),
        "container": in_container(),
        "pid_max": int(read("/proc/sys/kernel/pid_max") or 0),
        "pids": pids_of_group(),
        "nproc": resource.getrlimit(resource.RLIMIT_NPROC)[0],
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "memory_bytes": default_memory_bytes(),
        "huge_pages": chosen(read("/sys/kernel/mm/transparent_hugepage/enabled")),
        "scratch_parent": default_scratch_parent(),
        "flavours": installed_flavours(),
        "flavours_left_out": left_out(),
        "working_copies": working_copies(),
        "scratch_free_bytes": shutil.disk_usage(default_scratch_parent()).free,
    }


def read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def chosen(text: str) -> str:
    """`madvise` of "always [madvise] never"."""
    return text.partition("[")[2].partition("]")[0]


def in_child(change: Callable[[], None]) -> bool:
    """Whether `change` succeeds, tried in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            change()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def in_container() -> bool:
    """By what engines leave: files, which read-only containers of podman lack, or variables."""
    files, variables = ("/.dockerenv", "/run/.containerenv"), ("container", "KUBERNETES_SERVICE_HOST")
    return any(map(os.path.exists, files)) or any(name in os.environ for name in variables)


def pids_of_group() -> int:
    """Processes and threads that this control group may have, as a container sees its own; 0: any number."""
    text = read("/sys/fs/cgroup/pids.max") or read("/sys/fs/cgroup/pids/pids.max")
    return int(text) if text.isdecimal() else 0


def cgroup_version() -> str:
    """`v2`, `v1` (which has a memory controller) or ""."""
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        return "v2"
    return "v1" if os.path.isdir("/sys/fs/cgroup/memory") else ""


# --- judging ---------------------------------------------------------------------------------------------


def report_of(started: Started, facts: dict[str, Any]) -> Report:
    layers = list(layers_of(started, facts))
    missing = [layer.name for layer in layers if not layer.active]
    if started.error:
        why = started.error
    elif started.tier == "B":
        why = "a filter, limits and files of its own for every program, inside namespaces of the pool's own"
    else:
        why = "a filter, limits and files of its own for every program; namespaces could not be had"
    if missing and not started.error:
        why += f" (absent: {', '.join(missing)})"
    return Report(tier=started.tier, why=why, layers=layers, limits=list(limits_of(facts)), facts=facts)


def layers_of(started: Started, facts: Mapping[str, Any]) -> Iterator[Layer]:
    """The strongest need first. Without a pool, what the probes alone say."""
    known = bool(started.isolation)
    has = started.isolation
    yield layer(
        "seccomp",
        "seccomp" in has if known else facts["seccomp"],
        required=True,
        detail="a filter of system calls: no fork, exec, socket, ptrace or mount",
        cost="no pool starts",
        reason="this kernel offers no seccomp filter",
        fix="use a kernel with CONFIG_SECCOMP_FILTER and a container runtime that allows seccomp",
    )
    yield layer("nnp", True, required=True, detail="no_new_privs: nothing is gained from setuid programs")
    yield layer(
        "rlimits", True, required=True, detail="address space, CPU time, file size, descriptors, no core"
    )
    yield landlock_layer("landlock" in has if known else facts["landlock_abi"] > 0, facts)
    yield uid_layer("uid" in has if known else uid_problem(facts) == ("", ""), facts)
    yield layer(
        "notify",
        facts["user_notif"] and facts["seccomp"],
        detail="the supervisor is asked about new files and signals",
        cost="no scratch directories and no branches of sessions",
        reason="this kernel has no seccomp user notification",
        fix="boot Linux 5.5 or newer",
    )
    yield layer(
        "scratch",
        started.scratch,
        detail=f"a directory of its own for every program, below {facts['scratch_parent']}",
        cost="programs cannot write a file",
        reason="it needs landlock and notify" if not started.error else "no pool started",
        fix="see landlock and notify",
    )
    yield namespaces_layer("namespaces" in has, facts)
    yield cgroup_layer("cgroup" in has, facts)


def cgroup_layer(active: bool, facts: Mapping[str, Any]) -> Layer:
    if facts["container"]:
        reason = "a container's control groups are not its own"
        fix = "bound the whole container (`--memory 8g`): programs together have three quarters of that"
    else:
        reason = "no group can be made here" if facts["cgroup"] else "no control groups are mounted"
        fix = "start as root, or in a unit with `Delegate=memory` (`systemd-run --user -p Delegate=yes`)"
    return layer(
        "cgroup",
        active,
        detail=f"a control group for the pool's memory ({facts['cgroup'] or 'none mounted'})",
        cost="memory is limited per program and by admission, not for the pool as a whole",
        reason=reason,
        fix=fix,
    )


def layer(
    name: str,
    active: bool,
    *,
    detail: str,
    required: bool = False,
    cost: str = "",
    reason: str = "",
    fix: str = "",
) -> Layer:
    absent = not active
    return Layer(
        name=name,
        active=active,
        required=required,
        detail=detail,
        cost=cost if absent else "",
        reason=reason if absent else "",
        fix=fix if absent else "",
    )


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
    return layer(
        "landlock",
        active,
        detail="; ".join([f"ABI {abi}: reads only below Python and the system's libraries", *gains]),
        cost="no scratch directory, and programs read what their user can; tier A then needs the uid layer",
        reason="the kernel was built or booted without Landlock" if abi == 0 else "the pool left it out",
        fix="boot Linux 5.13 or newer with `lsm=landlock,...` on the kernel's command line",
    )


def uid_problem(facts: Mapping[str, Any]) -> tuple[str, str]:
    """(reason, fix), both empty when nothing is in the way."""
    if not facts["can_change_uid"] and facts["uid"] == 0:
        return (
            "this root may not change users, or has none to change to",
            "`--cap-add SETUID --cap-add SETGID` of a container, and 65,536 users for who starts it "
            "(`/etc/subuid`, `/etc/subgid`)",
        )
    if not facts["can_change_uid"]:
        return (
            f"user {facts['uid']} cannot become another",
            "start as root (in a container, say) to give every program a user of its own",
        )
    if facts["python_hidden"]:
        return (
            f"other users cannot read {facts['python_hidden']}",
            "install Python in a world-readable place, such as /usr/local or /opt",
        )
    return "", ""


def uid_layer(active: bool, facts: Mapping[str, Any]) -> Layer:
    reason, fix = uid_problem(facts)
    return layer(
        "uid",
        active,
        detail="a user id of its own for every program at a time",
        cost="programs share this user, and its count of processes does not limit their threads",
        reason=reason,
        fix=fix,
    )


def namespaces_layer(active: bool, facts: Mapping[str, Any]) -> Layer:
    if facts["apparmor_restricts"]:
        reason = "AppArmor restricts user namespaces"
        fix = "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or a profile that allows `userns`"
    elif facts["container"] and not facts["user_namespaces"]:
        reason = "the engine's filter of system calls refuses namespaces"
        fix = "`--security-opt seccomp=unconfined`: programs have rocstar's own filter in any case"
    elif facts["container"]:
        reason = "mounts inside a namespace were refused"
        fix = "`--security-opt apparmor=unconfined`; as root it needs SETUID, SETGID and SETFCAP"
    elif not facts["user_namespaces"]:
        reason = "this user may not make user namespaces"
        fix = "`sysctl user.max_user_namespaces=1000`, or start as root"
    else:
        reason, fix = "mounts inside a namespace were refused", "start as root"
    return layer(
        "namespaces",
        active,
        detail="no network, no IPC, read-only mounts and hidden homes behind the filter",
        cost="tier A in place of B: the filter alone stands before the network and the machine's IPC",
        reason=reason,
        fix=fix,
    )


def limits_of(facts: Mapping[str, Any]) -> Iterator[Measure]:
    pid_max = facts["pid_max"]
    yield measure(
        "pid_max",
        str(pid_max),
        (0 < pid_max < SMALL_PID_MAX)
        and f"at most {pid_max} processes and threads on the machine, sessions included",
        "sysctl kernel.pid_max=4194304",
    )
    pids = facts["pids"]
    if pids:
        note = pids < SMALL_PIDS and f"at most {pids} processes and threads, sessions included"
        yield measure("pids", str(pids), note, f"a container: `--pids-limit {4 * SMALL_PIDS}`")
    for name, small, use in (
        ("nproc", SMALL_NPROC, "programs and sessions count as this user's processes"),
        ("nofile", SMALL_NOFILE, "a live program takes four descriptors"),
    ):
        value = facts[name]
        is_small = value != resource.RLIM_INFINITY and value < small
        shown = "unlimited" if value == resource.RLIM_INFINITY else str(value)
        yield measure(name, shown, is_small and use, f"raise `ulimit` ({name}) to {small} or more")
    yield measure("memory", f"{facts['memory_bytes'] / 2**30:.1f} GiB for all programs together", False, "")
    pages = facts["huge_pages"]
    yield measure(
        "huge pages",
        pages or "none",
        pages not in ("madvise", "always") and "a fork of a large flavour costs about twice as much",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )
    yield measure(
        "kernel",
        facts["kernel"],
        kernel_version(facts["kernel"]) < COLLAPSE_KERNEL and "heaps cannot be gathered into huge pages",
        "boot Linux 6.1 or newer",
    )
    absent = "; ".join(facts["flavours_left_out"])
    yield measure("flavours", ", ".join(facts["flavours"]), absent, "run the command that the note names")
    copies = ", ".join(facts["working_copies"])
    yield measure(
        "packages",
        "working copies among them" if copies else "all can be read",
        copies and f"of {copies} programs read no data file, and import nothing that was not imported before",
        "install it without `-e`, or leave it out of the .pth file",
    )
    free = facts["scratch_free_bytes"]
    yield measure("scratch", f"{free / 2**30:.1f} GiB free", free < 1 << 30 and "little room", "free some")


def measure(name: str, value: str, note: str | bool, fix: str) -> Measure:
    return Measure(name=name, value=value, note=note or "", fix=fix if note else "")  # type: ignore[arg-type]


def kernel_version(release: str) -> tuple[int, int]:
    major, minor, *_ = [*release.split("."), "0"]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


# --- the command -----------------------------------------------------------------------------------------


def main(options: argparse.Namespace) -> int:
    """Exit status 1 when no pool can start."""
    report = examine()
    if options.json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        show(report)
    return int(report.tier == "none")


def show(report: Report) -> None:
    print(f"tier {report.tier}: {report.why}\n")
    for one in report.layers:
        word = "active" if one.active else "MISSING" if one.required else "absent"
        print(f"{word:<8} {one.name:<11} {one.detail}")
        for label, text in (("cost", one.cost), ("why", one.reason), ("fix", one.fix)):
            if text:
                print(f"{'':<21}{label}: {text}")
    print()
    for limit in report.limits:
        print(f"{limit.name:<11} {limit.value}")
        for label, text in (("note", limit.note), ("fix", limit.fix)):
            if text:
                print(f"{'':<12}{label}: {text}")
