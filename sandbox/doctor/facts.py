"""Facts of this machine and this user that determine layers and limits.

A probe that changes the state of a process runs in a child process.
"""

import os
import platform
import resource
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rocstar.sandbox import _native
from rocstar.sandbox.attacks.host import allows_user_namespace
from rocstar.sandbox.extras import installed_flavours, left_out
from rocstar.sandbox.pool.paths import default_scratch_parent, is_world_readable, python_paths, working_copies
from rocstar.sandbox.pool.pool import default_memory_bytes

SLOT_UIDS = (100_000, 32_768)
"""The id of the first program's user, and a smaller one that fits into most user namespaces."""

NEEDED = {"CHOWN": 0, "DAC_OVERRIDE": 1, "KILL": 5}
"""The capabilities with which root keeps the directories of other users and ends their programs. Root in a
container may lack them."""


def gather() -> dict[str, Any]:
    """Return all facts, by name."""
    held = int(read("/proc/self/status").partition("\nCapEff:")[2].split()[0], 16)
    hidden = [path for path in python_paths() if not is_world_readable(path)]
    native: Mapping[str, Any] = _native.probe()
    cgroup = "v1" if os.path.isdir("/sys/fs/cgroup/memory") else ""
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        cgroup = "v2"
    pages = read("/sys/kernel/mm/transparent_hugepage/enabled")  # such as "always [madvise] never"
    pids = read("/sys/fs/cgroup/pids.max") or read("/sys/fs/cgroup/pids/pids.max")
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
        "can_change_uid": any(in_child(partial(change_user, uid)) for uid in SLOT_UIDS),
        "lacks": [name for name, bit in NEEDED.items() if not held >> bit & 1],
        "python_hidden": hidden[0] if hidden else "",
        "cgroup": cgroup,
        "container": in_container(),
        "pid_max": int(read("/proc/sys/kernel/pid_max") or 0),
        "pids": int(pids) if pids.isdecimal() else 0,  # 0: any number
        "nproc": resource.getrlimit(resource.RLIMIT_NPROC)[0],
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "memory_bytes": default_memory_bytes(),
        "huge_pages": pages.partition("[")[2].partition("]")[0],
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


def in_child(change: Callable[[], None]) -> bool:
    """Return True if `change` succeeds in a child process."""
    pid = os.fork()
    if pid == 0:
        try:
            change()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def change_user(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def in_container() -> bool:
    """Return True if the files of a container engine exist, which read-only containers of podman lack, or its
    environment variables."""
    files, variables = ("/.dockerenv", "/run/.containerenv"), ("container", "KUBERNETES_SERVICE_HOST")
    return any(map(os.path.exists, files)) or any(name in os.environ for name in variables)
