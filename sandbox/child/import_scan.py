"""Which flavour suits a program, from a scan of what it seems to import.

A guess: a program of the wrong flavour gives the same result, only slower. So the scan looks for words, not
for grammar: an import inside a string may count, and one that is put together at run time does not.
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
"""Packages in no flavour, and the dearest package of a flavour that their import brings in."""

MAX_SCANNED: Final = 1 << 17
"""Characters of a program that are scanned: imports stand near its top."""

_CHOSEN: Final = tuple(flavour for flavour in FLAVOURS.values() if flavour.chosen)
_PACKAGES: Final = (*sorted(frozenset[str]().union(*(flavour.packages for flavour in _CHOSEN))), *RELATIVES)
MAX_MENTIONS: Final = 32
"""Places where a package is named that are looked at."""

MAX_BEFORE: Final = 1024
"""Characters of a line before such a place that are looked at: a scan takes time on its caller's loop."""

_WRAPPED: Final = re.compile(r"""b64decode\(b?["']([A-Za-z0-9+/=]+)""")


def select_flavour(code: str, offered: Collection[str]) -> str:
    """The cheapest flavour among `offered` that has what `code` imports, or else most of it. Never raises.

    Flavours with a purpose of their own, and names that are no flavour's, are chosen only when nothing else
    is offered.
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
    """The packages of some flavour that `code` seems to import."""
    text = code[:MAX_SCANNED].replace("\\\n", "  ")  # a line that goes on is one line
    if "import" not in text:
        return frozenset()
    if "b64decode(" in text:
        text = "\n".join((text, *_unwrapped(text)))
    found = {RELATIVES.get(name, name) for name in _PACKAGES if name in text and _is_imported(name, text)}
    return frozenset(found | {"numpy"} if "matplotlib" in found else found)


def _is_imported(name: str, text: str) -> bool:
    """True when `name` stands as a word after an `import` or a `from` of its own line, at most MAX_BEFORE
    characters on."""
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
    """Programs that a wrapper carries as base64, as the client of rStar2-Agent sends them."""
    for match in _WRAPPED.finditer(text):
        try:
            yield base64.b64decode(match[1], validate=True).decode("utf-8", "replace")
        except binascii.Error:
            continue
