"""User flavours, declared in a TOML file:

    [flavour.tables]
    imports = ["pandas", "our_library.tables"]     preloaded, in order
    environment = "/srv/tables"                    optional: a virtual environment of this Python version; its
                                                   packages precede those of rocstar

They are selected by name only. A zygote receives them on its command line.
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
    """Read the flavours of a file, by name. Relative paths are relative to its folder. Raise ValueError for
    invalid contents, OSError for an unreadable file."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot parse {path}: {error}. Fix the TOML and save the file as UTF-8.") from None
    flavours = tables.pop("flavour", None)
    if tables or not isinstance(flavours, dict) or not flavours:
        raise ValueError(f"{path} has {', '.join(tables) or 'no flavour'}. Write only tables [flavour.NAME].")
    return {name: _flavour(name, table, Path(path)) for name, table in flavours.items()}


def _flavour(name: str, table: Any, path: Path) -> Flavour:
    where = f"{path}, [flavour.{name}]"
    if name in FLAVOURS or name == "auto" or not name.isidentifier() or not name.isascii():
        raise ValueError(f"{where}: use a name of ASCII letters other than {', '.join(FLAVOURS)}, auto")
    if not isinstance(table, dict) or table.keys() - set(KEYS):
        unknown = ", ".join(sorted(table.keys() - set(KEYS))) if isinstance(table, dict) else repr(table)
        raise ValueError(f"{where} has {unknown}. The keys are {' and '.join(KEYS)}.")
    imports = table.get("imports", [])
    if not isinstance(imports, list) or not all(
        isinstance(one, str) and all(map(str.isidentifier, one.split("."))) for one in imports
    ):
        raise ValueError(f"{where}: imports is {imports!r}. Use a list of module names.")
    environment = table.get("environment", "")
    if not isinstance(environment, str):
        raise ValueError(f"{where}: environment is {environment!r}. Use the path of a virtual environment.")
    return Flavour(
        name=name,
        modules=tuple(imports),
        warm_up="",
        install=f"install it in {environment}" if environment else "pip install it beside rocstar",
        chosen=False,
        site=_site_of(path.parent / environment, where) if environment else "",
    )


def _site_of(environment: Path, where: str) -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = environment.resolve() / "lib" / version / "site-packages"
    if not site.is_dir():
        problem = f"environment {environment} has no lib/{version}/site-packages"
        raise ValueError(f"{where}: {problem}. Create it with {sys.executable} -m venv.")
    return str(site)


def encode_flavours(flavours: Iterable[Flavour]) -> list[str]:
    """Return the flavours as arguments of a zygote's command line."""
    fields = {one.name: [one.modules, one.install, one.site] for one in flavours}
    return [f"--declared={json.dumps(fields)}"] if fields else []


def decode_flavours(text: str) -> dict[str, Flavour]:
    """Decode the argument in the zygote."""
    return {
        name: Flavour(name=name, modules=tuple(modules), warm_up="", install=install, site=site)
        for name, (modules, install, site) in json.loads(text).items()
    }


def site_paths(site: str) -> list[str]:
    """Return a folder of packages and the folders that its .pth files name."""
    import site as python_site

    before = list(sys.path)
    python_site.addsitedir(site)
    added = [path for path in sys.path if path not in before]
    sys.path[:] = before
    return added


def prepend_site(folders: Sequence[str]) -> None:
    """Insert folders of packages into sys.path after the standard library and before all other packages."""
    standard = os.path.dirname(os.__file__)
    others = [path for path in sys.path if path not in folders]
    ends = [n for n, path in enumerate(others, 1) if path.startswith(standard) and "-packages" not in path]
    place = max(ends, default=len(others))
    sys.path[:] = [*others[:place], *folders, *others[place:]]
