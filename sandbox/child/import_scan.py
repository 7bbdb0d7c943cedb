"""Selects the flavour of a program by a scan of its imports.

The scan is a heuristic: with another flavour a program has the same result, only later. It searches for words
and does not parse: an import inside a string may count, and an import that is built at run time does not.
"""

import base64
import binascii
import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Final

from rocstar.sandbox.child.flavours import FLAVOURS, Flavour

RELATIVES: Final = {
    "networkx": "numpy",
    "pandas": "numpy",
    "pylab": "numpy",
    "seaborn": "scipy",
    "sklearn": "scipy",
    "statsmodels": "scipy",
}
"""Packages of no flavour, and the slowest package of a flavour that they import."""

MAX_SCANNED: Final = 1 << 17
"""The characters of a program that are scanned; imports are near its top."""

_CHOSEN: Final = tuple(flavour for flavour in FLAVOURS.values() if flavour.chosen)
_PACKAGES: Final = (*sorted(frozenset[str]().union(*(flavour.packages for flavour in _CHOSEN))), *RELATIVES)
MAX_MENTIONS: Final = 32
"""The number of mentions of a package that are examined."""

MAX_BEFORE: Final = 1024
"""The characters of a line before a mention that are examined: the scan blocks its caller's loop."""

_WRAPPED: Final = re.compile(r"""b64decode\(b?["']([A-Za-z0-9+/=]+)""")


def select_flavour(code: str, offered: Collection[str]) -> str:
    """Return the cheapest flavour of `offered` that has the packages that `code` imports, or most of them.
    Never raises.

    Special-purpose flavours and unknown names are selected only if nothing else is offered.
    """
    flavours = _chosen_of(tuple(offered))
    if not flavours:
        return next(iter(offered), "stdlib")
    if not (wanted := find_imports(code)):
        return flavours[0].name
    return min(flavours, key=lambda flavour: len(wanted - flavour.packages)).name  # the first of the best


@lru_cache(maxsize=64)
def _chosen_of(offered: tuple[str, ...]) -> list[Flavour]:
    return [flavour for flavour in _CHOSEN if flavour.name in offered]


def find_imports(code: str) -> frozenset[str]:
    """Return the packages of any flavour that `code` appears to import."""
    text = code[:MAX_SCANNED].replace("\\\n", "  ")  # join continued lines
    if "import" not in text:
        return frozenset()
    if "b64decode(" in text:
        text = "\n".join((text, *_unwrapped(text)))
    found = {RELATIVES.get(name, name) for name in _PACKAGES if name in text and _is_imported(name, text)}
    return frozenset(found | {"numpy"} if "matplotlib" in found else found)


def _is_imported(name: str, text: str) -> bool:
    """Return True if `name` is a word after `import` or `from` in its line, at most MAX_BEFORE characters
    later."""
    at = -len(name)
    for _ in range(MAX_MENTIONS):
        at = text.find(name, at + len(name))
        if at < 0:
            return False
        nearest = max(0, at - MAX_BEFORE)
        start = max(nearest, text.rfind("\n", nearest, at) + 1)
        before, after = text[start:at], text[at + len(name) : at + len(name) + 1]
        if _is_part(before[-1:]) or _is_part(after) or before.endswith("."):
            continue
        if "import" in before or "from" in before:
            return True
    return False


def _is_part(character: str) -> bool:
    return character == "_" or character.isalnum()


def _unwrapped(text: str) -> Iterator[str]:
    """Yield programs that a wrapper contains as base64, as the client of rStar2-Agent sends them."""
    for match in _WRAPPED.finditer(text):
        try:
            yield base64.b64decode(match[1], validate=True).decode("utf-8", "replace")
        except binascii.Error:
            continue
