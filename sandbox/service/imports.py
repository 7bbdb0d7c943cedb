"""Which flavour suits a program, from a scan of what it imports. A wrong guess still works, only slower."""

import base64
import binascii
import re
from collections.abc import Iterable, Sequence

from rocstar.sandbox.flavours import FLAVOURS

AUTO = "auto"

NEVER_CHOSEN = frozenset(("verifier", "cpp"))
"""Flavours for a purpose of their own: taken when named, never by a scan."""

RELATIVES = {
    "mpmath": "sympy",
    "pandas": "numpy",
    "networkx": "numpy",
    "matplotlib": "numpy",
    "statsmodels": "scipy",
}
"""Packages whose import brings another one that a flavour has."""

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([^#\n;]+))|[;:][ \t]*(?:from[ \t]+(\w+)|import[ \t]+([^#\n;]+))",
    re.M,
)
_WRAPPED = re.compile(r'b64decode\("([A-Za-z0-9+/=]+)"')
MAX_SCANNED = 200_000
"""Characters of a program that are scanned: imports stand near its top."""


class FlavourChoice:
    """Chooses among the flavours that a sandbox has.

    names: all of them, in order; the first is what a program gets that imports nothing special.
    """

    def __init__(self, names: Sequence[str]) -> None:
        if not names:
            raise ValueError("at least one flavour is needed")
        self.names = tuple(names)
        self._default = "stdlib" if "stdlib" in self.names else self.names[0]
        base = _packages(self._default)
        self._special = {
            name: _packages(name) - base
            for name in self.names
            if name not in NEVER_CHOSEN and name != self._default
        }
        self._known = frozenset().union(*self._special.values(), RELATIVES) if self._special else frozenset()
        self._signs = re.compile("|".join(sorted(map(re.escape, self._known)))) if self._known else None

    def choose(self, code: str) -> str:
        """The smallest flavour that has all of what `code` imports and any flavour has."""
        if self._signs is None:
            return self._default
        wrapped = "b64decode(" in code
        if not wrapped and self._signs.search(code) is None:
            return self._default
        texts = [code[:MAX_SCANNED], *(_unwrapped(code) if wrapped else ())]
        found = {RELATIVES.get(name, name) for text in texts for name in imported(text)} & self._known
        if not found:
            return self._default
        return min(
            self._special, key=lambda name: (len(found - self._special[name]), len(self._special[name]))
        )


def _packages(flavour: str) -> frozenset[str]:
    known = FLAVOURS.get(flavour)
    return frozenset(module.partition(".")[0] for module in known.modules) if known else frozenset()


def imported(code: str) -> Iterable[str]:
    """The top-level names of the packages that import statements in `code` seem to name."""
    for match in _IMPORT.finditer(code):
        single = match[1] or match[3]
        if single:
            yield single
        else:
            for part in (match[2] or match[4]).split(","):
                yield part.strip().partition(" ")[0].partition(".")[0]


def _unwrapped(code: str) -> Iterable[str]:
    """Programs that a wrapper carries as base64, as the client of rStar2-Agent sends them."""
    for match in _WRAPPED.finditer(code):
        try:
            yield base64.b64decode(match[1][:MAX_SCANNED], validate=True).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            continue
