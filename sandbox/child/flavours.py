"""What each zygote has imported and warmed up before it forks: a child then pays for neither."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """What a zygote imports before it forks.

    Args:
        modules: imported in order.
        warm_up: a program run once, so that lazy caches are filled before forking.

    install: what to install when a module is missing. packages: what a program may import that is slow to
    import and is here already (scan.py chooses by it). put_off: what those modules import and programs seldom
    need; it is imported when something of it is used (later.py). chosen: False for a flavour with a purpose
    of its own, which is only ever taken by its name. environment: set while the modules are imported. site: a
    folder of packages that come before the others (declared.py).
    """

    name: str
    modules: tuple[str, ...]
    warm_up: str
    install: str = ""
    packages: frozenset[str] = frozenset()
    put_off: tuple[str, ...] = ()
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

# Without a bound sympy's caches keep no order of use, so that a hit writes to no page; a child's memory limit
# bounds what they hold.
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
            put_off=("cellpylib",),  # it imports matplotlib, for two families that make boards
            chosen=False,
            environment=_SYMPY,
        ),
        Flavour(name="cpp", modules=(), warm_up="", install="apt-get install g++", chosen=False),
        Flavour(name="bash", modules=(), warm_up="", install="apt-get install bash", chosen=False),
    )
}
"""From the cheapest to fork to the dearest; last C++ and bash, whose children run no Python (cpp.py,
bash.py)."""
