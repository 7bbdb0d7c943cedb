"""The paths of programs and zygotes.

    folders of this interpreter, environments that it is based     --> readable   with LIBRARIES
    on, packages of declared flavours, the folder that rocstar was
    installed into, the targets of their links
    the same, sys.path, the interpreter by each of its names       --> kept       where homes are hidden
    parent folders of both that other users may not enter          --> private    except what is below them

Other folders that a .pth file or a link names are working copies or homes, and stay unreadable.
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
from importlib.machinery import PathFinder, all_suffixes
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rocstar.sandbox.child.cpp import LIBRARIES

SANDBOX = Path(__file__).parents[1]
"""The package rocstar.sandbox of this process."""

PACKAGES = re.compile(r".*/lib(64)?/python3(\.\d+t?)?/(site|dist)-packages")
"""The folder of packages of an interpreter or a virtual environment, which holds nothing else."""


def path_options(python: str, sites: Sequence[str]) -> list[str]:
    """Return the paths that programs may read, that zygotes need, and that are private, as options of the
    supervisor's command line.

    Args:
        python: The interpreter of the zygotes.
        sites: The folders of packages that declared flavours have.
    """
    beside = [folder for one in sites for folder in folders_beside(one)]
    layered = [*layered_packages([*sys.path, *beside]), *target_packages()]
    linked = linked_packages([*layered, *sites])
    readable = [*python_paths(), *layered, *linked, *sites]
    kept = [*kept_paths(python), *layered, *linked, *sites, *beside]
    return [
        *(f"--keep={path}" for path in kept),
        *(f"--readable={path}" for path in (*readable, *LIBRARIES)),
        *(f"--private={path}" for path in private_folders((*readable, *kept))),
    ]


def default_scratch_parent() -> str:
    """Return the parent of scratch directories: the default temporary directory if all users can reach it,
    else /tmp."""
    usual = tempfile.gettempdir()
    return usual if is_world_readable(usual) else "/tmp"


def python_paths() -> list[str]:
    """Return the folders that this interpreter imports from, without those of .pth files
    (`layered_packages`)."""
    found = [sys.prefix, sys.base_prefix, *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return [path for path in dict.fromkeys(map(os.path.realpath, found)) if os.path.isdir(path)]


def layered_packages(folders: Iterable[str]) -> list[str]:
    """Return those of `folders` (of .pth files) that are folders of packages: an environment may be based on
    another. Other folders may be working copies or homes."""
    found = {os.path.realpath(folder) for folder in folders if os.path.isabs(folder)}
    home = own_home()
    return sorted(
        path for path in found if PACKAGES.fullmatch(path) and os.path.isdir(path) and not home.is_relative_to(path)
    )


def target_packages() -> list[str]:
    """Return the entry of PYTHONPATH into which `pip install --target` installed rocstar, which holds only
    packages; [] if there is none or if it contains a home."""
    entry = Path(os.path.realpath(own_entry())) if own_entry() else None
    if entry is None or own_home().is_relative_to(entry) or not any(entry.glob("rocstar-*.dist-info")):
        return []
    return [str(entry)]


def folders_beside(packages: str) -> list[str]:
    """Return the existing folders that the .pth files of a folder of packages name."""
    found = []
    for file in sorted(Path(packages).glob("*.pth")):
        with suppress(OSError, UnicodeDecodeError):  # the interpreter ignores it, too
            lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
            found += [os.path.join(packages, line) for line in lines if line and not line.startswith("#")]
    return [os.path.normpath(folder) for folder in found if os.path.isdir(folder)]


def working_copies() -> list[str]:
    """Return the folders that zygotes import from, by a .pth file, an editable install or PYTHONPATH, and
    that programs may not read."""
    import importlib.metadata

    sites = dict.fromkeys(os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
    found = {os.path.realpath(folder) for one in sites for folder in folders_beside(one)}
    if entry := own_entry():
        found.add(os.path.realpath(entry))
    for one in importlib.metadata.distributions(path=list(sites)):
        noted = json.loads(one.read_text("direct_url.json") or "{}")
        # rocstar itself is readable for its zygotes.
        if noted.get("dir_info", {}).get("editable") and one.name != "rocstar":
            found.add(os.path.realpath(unquote(urlsplit(noted["url"]).path)))
    readable = [*python_paths(), *layered_packages(found), *target_packages()]
    return sorted(path for path in found if not any(Path(path).is_relative_to(one) for one in readable))


def linked_packages(besides: Iterable[str] = ()) -> list[str]:
    """Return the targets of links in the folders of packages of this environment and of `besides`: the
    modules themselves and not the folders that contain them."""
    folders = {*besides, *(sysconfig.get_path(name) for name in ("purelib", "platlib"))}
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    found: set[str] = set()
    for folder in sorted(folders):
        with suppress(OSError):  # missing, or not readable
            found.update(os.path.realpath(entry.path) for entry in os.scandir(folder) if is_package(entry))
    return sorted(found)


def is_package(link: "os.DirEntry[str]") -> bool:
    """Return True for a link to a module file, or to a folder that is not hidden (~/.ssh) and contains
    neither the link nor a home (/)."""
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
    """Return the home directory, or a path that contains nothing: a container's user may have no name and no
    HOME."""
    return Path(os.path.realpath(os.path.expanduser("~")))


def kept_paths(python: str) -> list[str]:
    """Return the paths that a zygote needs: the interpreter by each of its names, the folders of sys.path,
    and this package, which an editable install has elsewhere."""
    names = [python]
    while os.path.islink(names[-1]) and len(names) < 16:
        names.append(os.path.join(os.path.dirname(names[-1]), os.readlink(names[-1])))
    folders = [os.path.dirname(os.path.normpath(name)) for name in names]
    found = [*sys.path, sys.prefix, sys.base_prefix, *folders, str(SANDBOX)]
    absolute = [path for path in found if os.path.isabs(path)]
    return list(dict.fromkeys([*map(os.path.realpath, absolute), *absolute]))


def private_folders(paths: Iterable[str]) -> list[str]:
    """Return the topmost parents of `paths` that not every user may enter, for example a home."""
    found = []
    for path in paths:
        above = [folder for folder in reversed(Path(path).parents) if folder.is_dir()]
        closed = next((folder for folder in above if not folder.stat().st_mode & 0o001), None)
        if closed is not None:
            found.append(str(closed))
    return list(dict.fromkeys(found))


def is_world_readable(path: str) -> bool:
    """Return True if every user can reach and list the folder."""
    folder = Path(path)
    reachable = all(parent.stat().st_mode & 0o001 for parent in (folder, *folder.parents))
    return reachable and bool(folder.stat().st_mode & 0o004)


# --- PYTHONPATH ------------------------------------------------------------------------------------------
#
# Zygotes get at most one entry, the one that contains rocstar: the others may hold anything. The error for a
# module that only another entry has names the fix.


def pythonpath_entries() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def own_entry() -> str:
    """Return the absolute entry of PYTHONPATH that rocstar was imported from, or "".

    Empty and relative entries depend on the current directory and are never passed on.
    """
    for entry in filter(os.path.isabs, pythonpath_entries()):
        package = os.path.join(entry, "rocstar", SANDBOX.name)
        if os.path.exists(package) and os.path.samefile(package, SANDBOX):
            return os.path.normpath(entry)
    return ""


def pythonpath_hint(module: str) -> str:
    """Return the fix for a module that a zygote lacks and PYTHONPATH has, else ""."""
    for folder in pythonpath_entries():
        if module and PathFinder.find_spec(module.partition(".")[0], [folder]) is not None:
            where = f" into {own}, beside rocstar" if (own := own_entry()) else ""
            return (
                f"; PYTHONPATH has it in {folder}, which the sandbox does not use: "
                f"install it{where}, or name the folder in a .pth file of that environment"
            )
    return ""
