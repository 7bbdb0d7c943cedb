"""The installed optional parts of rocstar, by the metadata of the package, and the commands that it prints.

A plain installation includes the sandbox. Every other part is an extra of pyproject.toml, which alone lists
the requirements.
"""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from rocstar.sandbox.child import bash, cpp
from rocstar.sandbox.child.flavours import FLAVOURS, Flavour

_OF_EXTRA: Final = re.compile(r"""^(?P<name>[\w.-]+)(?:\[(?P<extras>[\w,-]+)\])?.*extra == ['"](?P<extra>\w+)['"]""")


def missing_extra_message(who: str, extra: str) -> str:
    """Return the error for a missing requirement of an extra, with the install command, or "".

    Versions are not compared. If rocstar is on the path but not installed, nothing counts as missing, and the
    import itself fails.
    """
    for name in requirements(extra):
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{who} needs {name}: {install_command(extra)}"
    return ""


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, from the source of rocstar itself.

    pip records the source of packages that are not from an index. A checkout or a wheel is named by its path,
    because an index may have another package named rocstar.
    """
    try:
        noted = json.loads(importlib.metadata.distribution("rocstar").read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        noted = {}
    path = unquote(urlsplit(noted.get("url", "")).path)
    is_editable = noted.get("dir_info", {}).get("editable", False)
    source = path if path and os.path.exists(path) else "rocstar"
    return pip_command(*["-e"] * is_editable, f"{source}[{extra}]")


def pip_command(*words: str) -> str:
    """Return the command that installs packages into this environment."""
    return shell_command("-m", "pip", "install", *words, program="python")


def requirements(extra: str) -> list[str]:
    """Return the names of the distributions that an extra requires, including those of nested extras."""
    try:
        lines = importlib.metadata.requires("rocstar") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    names: list[str] = []
    for line in lines:
        found = _OF_EXTRA.match(line)
        if found is None or found["extra"] != extra:
            continue
        if found["name"] != "rocstar":
            names.append(found["name"])
        elif found["extras"]:
            names += [name for inner in found["extras"].split(",") for name in requirements(inner)]
    return names


@cache
def installed_flavours() -> tuple[str, ...]:
    """Return the flavours whose packages are installed, without importing them."""
    return tuple(name for name, flavour in FLAVOURS.items() if not missing_packages(flavour))


@cache
def offered_flavours() -> tuple[str, ...]:
    """Return the default flavours of a service or a worker: the installed ones, C++ only if it can be
    confined, and not bash, which must be named explicitly."""
    return tuple(name for name in installed_flavours() if name != bash.BASH and (name != cpp.CPP or cpp.offered()))


def missing_packages(flavour: Flavour) -> list[str]:
    """Return the packages of a flavour that are not installed, sorted."""
    return sorted(name for name in flavour.packages if find_spec(name) is None)


def left_out(flavours: Sequence[str] = tuple(FLAVOURS)) -> list[str]:
    """Return a line for each of these flavours with missing packages: their names and the install command."""
    return [
        f"flavour {name} is left out: it needs {', '.join(missing)}: {FLAVOURS[name].install}"
        for name in flavours
        if (missing := missing_packages(FLAVOURS[name]))
    ]


def shell_command(*words: object, program: str = "rocstar", variables: Sequence[str] = ()) -> str:
    """Return a command of this installation as one line for a shell.

    Args:
        words: the arguments.
        program: a script of this environment: rocstar, torchrun or python.
        variables: environment variables that are put before the command where they are set.
    """
    settings = [f"{name}={shlex.quote(os.environ[name])}" for name in variables if os.environ.get(name)]
    return " ".join([*settings, shlex.join([_program(program), *map(str, words)])])


def _program(name: str) -> str:
    """Return the program's name if PATH leads to this environment's, else its path."""
    started = Path(sys.argv[0]).absolute()  # `pip install --user` puts scripts elsewhere than python
    places = [Path(sys.executable).with_name(name), *([started] if started.name == name else [])]
    script = next((place for place in places if place.exists()), None)
    found = shutil.which(name)
    if script is None or (found and os.path.samefile(os.path.dirname(found), script.parent)):
        return name
    if not script.is_relative_to(Path.cwd()):
        return str(script)
    below = str(script.relative_to(Path.cwd()))
    return below if "/" in below else f"./{below}"
