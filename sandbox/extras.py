"""What of rocstar's optional parts is installed, told by the metadata of the installed package.

A plain installation brings the sandbox. Every other part is an extra of pyproject.toml, and what an extra
needs is written there and nowhere else.
"""

import importlib.metadata
import json
import os
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Final
from urllib.parse import unquote, urlsplit

from rocstar.sandbox.child import bash, cpp
from rocstar.sandbox.child.flavours import FLAVOURS, Flavour

_OF_EXTRA: Final = re.compile(
    r"""^(?P<name>[\w.-]+)(?:\[(?P<extras>[\w,-]+)\])?.*extra == ['"](?P<extra>\w+)['"]"""
)


def lacking(who: str, extra: str) -> str:
    """Sentence that says what `who` lacks of an extra and how to get it; "" if all of it is installed.

    Versions are not compared, and a rocstar that is on the path without being installed lacks nothing: there
    the import itself fails.
    """
    for name in requirements(extra):
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{who} needs {name}: {install_command(extra)}"
    return ""


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation, from where rocstar itself was installed.

    pip notes that place for what did not come from an index. A checkout or a wheel is named by its path,
    because an index that has no rocstar may one day have another's.
    """
    try:
        noted = json.loads(importlib.metadata.distribution("rocstar").read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        noted = {}
    path = unquote(urlsplit(noted.get("url", "")).path)
    is_editable = noted.get("dir_info", {}).get("editable", False)
    source = path if path and os.path.exists(path) else "rocstar"
    return f"pip install {'-e ' if is_editable else ''}'{source}[{extra}]'"


def requirements(extra: str) -> list[str]:
    """Names of the distributions that an extra asks for, those of the extras within it included."""
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
    """Flavours whose packages are here. Nothing is imported to find out."""
    return tuple(name for name, flavour in FLAVOURS.items() if not missing_packages(flavour))


@cache
def offered_flavours() -> tuple[str, ...]:
    """Flavours that a service or a worker offers unless it is told otherwise: the installed ones, C++ only
    where it can be confined, and never bash, which who wants it asks for by its name."""
    return tuple(
        name for name in installed_flavours() if name != bash.BASH and (name != cpp.CPP or cpp.offered())
    )


def missing_packages(flavour: Flavour) -> list[str]:
    """Packages of a flavour that are not installed, in order of their names."""
    return sorted(name for name in flavour.packages if find_spec(name) is None)


def left_out(flavours: Sequence[str] = tuple(FLAVOURS)) -> list[str]:
    """One line for each of these flavours that lacks a package: which, and the command that brings it."""
    return [
        f"flavour {name} is left out: it needs {', '.join(missing)}: {FLAVOURS[name].install}"
        for name in flavours
        if (missing := missing_packages(FLAVOURS[name]))
    ]
