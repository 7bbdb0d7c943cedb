"""The scripts of the page as one: a page that was exported has no server to load modules from.

Each module becomes a block of its own, in the order in which they need each other. It takes the modules of
static/ and no others: an import is a line of named things or of all (`* as name`), an export stands before a
declaration. ValueError for a line that is neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAMED = re.compile(r'import (\{[^}]+\}) from "\./([\w.]+)";')
_WHOLE = re.compile(r'import \* as (\w+) from "\./([\w.]+)";')
_EXPORT = re.compile(r"export ((?:async )?(?:function|class|const|let)\*? (\w+))")


def bundle(modules: Mapping[str, str], first: str) -> str:
    """One script that does what the module `first` does; `modules` has the texts by name.

    ValueError for a module that is not there, two that need each other, or a line that cannot be read.
    """
    blocks: dict[str, str] = {}
    _add(first, modules, blocks, ())
    return '(() => {\n"use strict";\nconst modules = {};\n' + "".join(blocks.values()) + "})();\n"


def _add(name: str, modules: Mapping[str, str], blocks: dict[str, str], path: tuple[str, ...]) -> None:
    """The block of a module, behind those of what it needs."""
    if name in blocks:
        return
    if name in path or name not in modules:
        raise ValueError(f"{' -> '.join((*path, name))}: a circle, or no such module")
    lines: list[str] = []
    names: list[str] = []
    for line in modules[name].splitlines():
        if found := _NAMED.fullmatch(line) or _WHOLE.fullmatch(line):
            _add(found[2], modules, blocks, (*path, name))
            line = f'const {found[1]} = modules["{found[2]}"];'
        elif found := _EXPORT.match(line):
            names.append(found[2])
            line = line.removeprefix("export ")
        elif re.match(r"(import|export)\b", line) or "</script" in line.lower():
            raise ValueError(f"{name}: {line!r} cannot be brought into one script")
        lines.append(line)
    told = f'modules["{name}"] = {{ {", ".join(names)} }};'
    blocks[name] = "\n".join(["{", *lines, told, "}", ""])
