"""The paths of programs: what of this machine's files they may read, and what a zygote starts from.

    folders of this interpreter, environments that lie below it,   --> readable   and what SYSTEM_PATHS names
    packages of declared flavours, what rocstar was installed
    into, where links of all these lead
    the same, sys.path, the interpreter by each of its names       --> kept       where homes are hidden
    folders on the way to both that others may not enter           --> private    but for what lies behind

What a .pth file or a link names besides is somebody's working copy, or a home, and stays closed.
"""

import json
import os
import re
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from rocstar.sandbox.pool.search_path import SANDBOX, own_entry

PACKAGES = re.compile(r".*/lib(64)?/python3(\.\d+t?)?/(site|dist)-packages")
"""Where an interpreter, or a virtual environment, has its packages, and nobody anything else."""

SYSTEM_PATHS = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
    *("/etc/ld.so.cache", "/etc/localtime", "/dev/zero", "/dev/urandom", "/dev/random"),
    *(f"/sys/devices/system/cpu/{name}" for name in ("online", "possible", "present")),
    *("/proc/cpuinfo", "/proc/meminfo"),
)
"""What a program may read besides the Python installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPaths:
    """What the supervisor is told. readable: by programs. kept: what a zygote needs. private: see
    `private_folders`."""

    readable: list[str]
    kept: list[str]
    private: list[str]

    @classmethod
    def of(cls, python: str, sites: Sequence[str]) -> Self:
        """
        Args:
            python: The interpreter of the zygotes.
            sites: The folders of packages that declared flavours have.
        """
        beside = [folder for one in sites for folder in folders_beside(one)]
        layered = [*layered_packages([*sys.path, *beside]), *target_packages()]
        linked = linked_packages([*layered, *sites])
        paths = [*python_paths(), *layered, *linked, *sites]
        kept = [*kept_paths(python), *layered, *linked, *sites, *beside]
        return cls(readable=[*paths, *SYSTEM_PATHS], kept=kept, private=private_folders((*paths, *kept)))


def default_scratch_parent() -> str:
    """Where scratch directories go: the usual temporary directory, if a user without rights can reach it."""
    usual = tempfile.gettempdir()
    return usual if is_world_readable(usual) else "/tmp"


def python_paths() -> list[str]:
    """The folders that this interpreter imports from. Of those that a .pth file points to see
    `layered_packages`."""
    found = [
        sys.prefix,
        sys.base_prefix,
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    ]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return [path for path in dict.fromkeys(map(os.path.realpath, found)) if os.path.isdir(path)]


def layered_packages(folders: Iterable[str]) -> list[str]:
    """Those of `folders`, which a .pth file may have named, that are where some interpreter has its packages:
    an environment lies over another. What else is named there is somebody's working copy, or a home."""
    found = {os.path.realpath(folder) for folder in folders if os.path.isabs(folder)}
    home = own_home()
    return sorted(
        path
        for path in found
        if PACKAGES.fullmatch(path) and os.path.isdir(path) and not home.is_relative_to(path)
    )


def target_packages() -> list[str]:
    """The entry of PYTHONPATH that `pip install --target` put rocstar into, and so packages and nothing else;
    empty if there is none, or if it is around a home."""
    entry = Path(os.path.realpath(own_entry())) if own_entry() else None
    if entry is None or own_home().is_relative_to(entry) or not any(entry.glob("rocstar-*.dist-info")):
        return []
    return [str(entry)]


def folders_beside(packages: str) -> list[str]:
    """What the .pth files of a folder of packages name besides, as far as it is there."""
    found = []
    for file in sorted(Path(packages).glob("*.pth")):
        with suppress(OSError, UnicodeDecodeError):  # which the interpreter passes over as well
            lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
            found += [os.path.join(packages, line) for line in lines if line and not line.startswith("#")]
    return [os.path.normpath(folder) for folder in found if os.path.isdir(folder)]


def working_copies() -> list[str]:
    """Folders that zygotes import from, by a .pth file, an editable install or PYTHONPATH, and that programs
    may not read."""
    import importlib.metadata

    sites = dict.fromkeys(os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
    found = {os.path.realpath(folder) for one in sites for folder in folders_beside(one)}
    if entry := own_entry():
        found.add(os.path.realpath(entry))
    for one in importlib.metadata.distributions(path=list(sites)):
        noted = json.loads(one.read_text("direct_url.json") or "{}")
        if (
            noted.get("dir_info", {}).get("editable") and one.name != "rocstar"
        ):  # which is opened for its zygotes
            found.add(os.path.realpath(unquote(urlsplit(noted["url"]).path)))
    readable = [*python_paths(), *layered_packages(found), *target_packages()]
    return sorted(path for path in found if not any(Path(path).is_relative_to(one) for one in readable))


def linked_packages(besides: Iterable[str] = ()) -> list[str]:
    """Where modules lie that a folder of packages, of this environment or of `besides`, has as links to
    elsewhere, a home, say: what a link leads to, and no folder around it, which may be anything's."""
    folders = {*besides, *(sysconfig.get_path(name) for name in ("purelib", "platlib"))}
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    found: set[str] = set()
    for folder in sorted(folders):
        with suppress(OSError):  # it is not there, or not ours to list
            found.update(os.path.realpath(entry.path) for entry in os.scandir(folder) if is_package(entry))
    return sorted(found)


def is_package(link: "os.DirEntry[str]") -> bool:
    """Whether it is a link to what an import opens: a file by the name of a module, or a folder that is
    neither hidden, as ~/.ssh is, nor around its own or a home, as / is."""
    if not link.is_symlink():
        return False
    target = os.path.realpath(link.path)
    if not os.path.isdir(target):
        return os.path.isfile(target) and link.name.endswith(tuple(all_suffixes()))
    around = Path(target)
    inner = (Path(link.path).parent.resolve(), own_home())
    hidden = link.name.startswith(".") or around.name.startswith(".")
    return not hidden and not any(path.is_relative_to(around) for path in inner)


def own_home() -> Path:
    """As it is told, or what nothing lies below: a container's user may have neither a name nor a HOME."""
    return Path(os.path.realpath(os.path.expanduser("~")))


def kept_paths(python: str) -> list[str]:
    """What a zygote starts from and imports besides: the interpreter by each of its names, the folders of
    sys.path, and this package, which an editable install has elsewhere."""
    names = [python]
    while os.path.islink(names[-1]) and len(names) < 16:
        names.append(os.path.join(os.path.dirname(names[-1]), os.readlink(names[-1])))
    folders = [os.path.dirname(os.path.normpath(name)) for name in names]
    found = [*sys.path, sys.prefix, sys.base_prefix, *folders, str(SANDBOX)]
    absolute = [path for path in found if os.path.isabs(path)]
    return list(dict.fromkeys([*map(os.path.realpath, absolute), *absolute]))


def private_folders(paths: Iterable[str]) -> list[str]:
    """The topmost folders on the way to `paths` into which not every user may go, if there are any: a home,
    say."""
    found = []
    for path in paths:
        above = [folder for folder in reversed(Path(path).parents) if folder.is_dir()]
        closed = next((folder for folder in above if not folder.stat().st_mode & 0o001), None)
        if closed is not None:
            found.append(str(closed))
    return list(dict.fromkeys(found))


def is_world_readable(path: str) -> bool:
    """True when a user with no rights of its own can reach and list the folder."""
    folder = Path(path)
    reachable = all(parent.stat().st_mode & 0o001 for parent in (folder, *folder.parents))
    return reachable and bool(folder.stat().st_mode & 0o004)
