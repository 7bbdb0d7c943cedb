"""The modules that each zygote imports and warms up before it forks, so that no child pays for either."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """A named set of preloaded modules.

    Args:
        modules: imported in order.
        warm_up: a program that the zygote runs once to fill lazy caches.
        install: the command that installs missing packages.
        packages: the preloaded packages that are slow to import; import_scan.py selects a flavour by them.
        lazy_modules: imported by `modules` but rarely used; loaded on first use (lazy_import.py).
        chosen: False for a flavour that is never selected automatically, only by name.
        environment: variables that are set while the modules are imported.
        site: a folder of packages that is searched before the others (user_flavours.py).
    """

    name: str
    modules: tuple[str, ...]
    warm_up: str
    install: str = ""
    packages: frozenset[str] = frozenset()
    lazy_modules: tuple[str, ...] = ()
    chosen: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    site: str = ""


def _programs(*names: str) -> str:
    return "\n".join((Path(__file__).parent / "warmup" / f"{name}.py").read_text() for name in names)


_STDLIB = (
    *("abc", "array", "ast", "bisect", "builtins", "cmath", "collections", "collections.abc", "contextlib"),
    *("copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq", "io"),
    *("itertools", "json", "linecache", "math", "numbers", "operator", "os", "random", "re", "statistics"),
    *("string", "struct", "sys", "textwrap", "threading", "time", "traceback", "types", "typing", "warnings"),
)
_NUMERIC = (*_STDLIB, "numpy", "numpy.random", "numpy.linalg", "sympy")
_SCIENTIFIC = (
    *_NUMERIC,
    *("scipy.constants", "scipy.integrate", "scipy.interpolate", "scipy.linalg", "scipy.optimize"),
    *("scipy.sparse", "scipy.spatial.distance", "scipy.special", "scipy.stats"),
)

# An unbounded sympy cache keeps no order of use, so a hit writes to no page; the memory limit bounds it.
_SYMPY = {"SYMPY_CACHE_SIZE": "None"}

FLAVOURS: Final[dict[str, Flavour]] = {
    flavour.name: flavour
    for flavour in (
        Flavour(name="stdlib", modules=_STDLIB, warm_up=_programs("stdlib")),
        Flavour(
            name="numeric",
            modules=_NUMERIC,
            warm_up=_programs("stdlib", "numeric"),
            install="pip install numpy sympy",
            packages=frozenset(("numpy", "sympy", "mpmath")),
            environment=_SYMPY,
        ),
        Flavour(
            name="scientific",
            modules=_SCIENTIFIC,
            warm_up=_programs("stdlib", "numeric", "scientific"),
            install="pip install numpy sympy scipy",
            packages=frozenset(("numpy", "sympy", "mpmath", "scipy")),
            environment=_SYMPY,
        ),
        Flavour(
            name="plot",
            modules=(*_SCIENTIFIC, "matplotlib", "matplotlib.pyplot"),
            warm_up=_programs("stdlib", "numeric", "scientific", "plot"),
            install="pip install numpy sympy scipy matplotlib",
            packages=frozenset(("numpy", "sympy", "mpmath", "scipy", "matplotlib")),
            environment=_SYMPY,
        ),
        Flavour(
            name="verifier",
            modules=(*_STDLIB, "sympy", "math_verify", "reasoning_gym"),
            warm_up=_programs("stdlib", "verifier"),
            install="pip install 'math-verify[antlr4_13_2]' reasoning-gym",
            packages=frozenset(("sympy", "mpmath", "math_verify", "reasoning_gym")),
            lazy_modules=("cellpylib",),  # imports matplotlib; only two task families need it
            chosen=False,
            environment=_SYMPY,
        ),
        Flavour(name="cpp", modules=(), warm_up="", install="apt-get install g++", chosen=False),
        Flavour(name="bash", modules=(), warm_up="", install="apt-get install bash", chosen=False),
    )
}
"""Ordered by the cost of a fork; last C++ and bash, whose children run no Python (cpp.py, bash.py)."""
