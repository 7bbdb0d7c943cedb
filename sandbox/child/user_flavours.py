"""Flavours of a user's own, declared in a file of TOML:

    [flavour.tables]
    imports = ["pandas", "our_library.tables"]     imported beforehand, in order
    environment = "/srv/tables"                    a virtual environment of this Python's version, which comes
                                                   before what rocstar itself has; left out: none

They are taken by their names only. A zygote gets them on its command line.
"""

import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.sandbox.child.flavours import FLAVOURS, Flavour

KEYS = ("imports", "environment")
NO_FLAVOURS: Mapping[str, Flavour] = {}


def read_flavours(path: str) -> dict[str, Flavour]:
    """Those of a file, by name; relative paths begin at its folder. Raises ValueError that says what to mend,
    OSError for the file."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}; mend it, and save it as UTF-8") from None
    found = tables.pop("flavour", None)
    if tables or not isinstance(found, dict) or not found:
        raise ValueError(f"{path} has {', '.join(tables) or 'no flavour'}; give tables [flavour.NAME] only")
    return {name: _flavour(name, table, Path(path)) for name, table in found.items()}


def _flavour(name: str, table: Any, path: Path) -> Flavour:
    where = f"{path}, [flavour.{name}]"
    if name in FLAVOURS or name == "auto" or not name.isidentifier() or not name.isascii():
        raise ValueError(f"{where}: give a name of letters that is none of {', '.join(FLAVOURS)}, auto")
    if not isinstance(table, dict) or table.keys() - set(KEYS):
        unknown = ", ".join(sorted(table.keys() - set(KEYS))) if isinstance(table, dict) else repr(table)
        raise ValueError(f"{where} has {unknown}; there are {' and '.join(KEYS)}")
    imports = table.get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(one, str) and _is_module(one) for one in imports):
        raise ValueError(f"{where}: imports is {imports!r}; give a list of names of modules")
    environment = table.get("environment", "")
    if not isinstance(environment, str):
        raise ValueError(f"{where}: environment is {environment!r}; give the path of a virtual environment")
    return Flavour(
        name=name,
        modules=tuple(imports),
        warm_up="",
        install=f"install it in {environment}" if environment else "pip install it beside rocstar",
        chosen=False,
        site=_site_of(path.parent / environment, where) if environment else "",
    )


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _site_of(environment: Path, where: str) -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = environment.resolve() / "lib" / version / "site-packages"
    if not site.is_dir():
        problem = f"environment {environment} has no lib/{version}/site-packages"
        raise ValueError(f"{where}: {problem}; make it with {sys.executable} -m venv")
    return str(site)


def encode_flavours(flavours: Iterable[Flavour]) -> list[str]:
    """For a zygote's command line."""
    told = {one.name: [one.modules, one.install, one.site] for one in flavours}
    return [f"--declared={json.dumps(told)}"] if told else []


def decode_flavours(text: str) -> dict[str, Flavour]:
    """What a zygote makes of it."""
    return {
        name: Flavour(name=name, modules=tuple(modules), warm_up="", install=install, site=site)
        for name, (modules, install, site) in json.loads(text).items()
    }


def site_paths(site: str) -> list[str]:
    """A folder of packages and what its .pth files name."""
    import site as python_site

    before = list(sys.path)
    python_site.addsitedir(site)
    added = [path for path in sys.path if path not in before]
    sys.path[:] = before
    return added


def prepend_site(folders: Sequence[str]) -> None:
    """Put folders of packages behind the standard library, and before all other packages."""
    standard = os.path.dirname(os.__file__)
    others = [path for path in sys.path if path not in folders]
    ends = [n for n, path in enumerate(others, 1) if path.startswith(standard) and "-packages" not in path]
    place = max(ends, default=len(others))
    sys.path[:] = [*others[:place], *folders, *others[place:]]
