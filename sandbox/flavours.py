"""What each zygote has imported and warmed up before it forks: a child then pays for neither."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """modules: imported in order. warm_up: a program run once, so that lazy caches are filled before forking.

    install: what to install when a module is missing.
    """

    name: str
    modules: tuple[str, ...]
    warm_up: str
    install: str = ""


_STDLIB = (
    *("abc", "array", "ast", "bisect", "builtins", "cmath", "collections", "collections.abc", "contextlib"),
    *("copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq", "io"),
    *("itertools", "json", "linecache", "math", "numbers", "operator", "os", "random", "re", "statistics"),
    *("string", "struct", "sys", "textwrap", "threading", "time", "traceback", "types", "typing", "warnings"),
)

_STDLIB_WARM_UP = """
import fractions, json, re, traceback, random
from collections import Counter, defaultdict, deque
from decimal import Decimal
re.findall(r"\\d+|[a-z]+", "a1 b22")
json.loads(json.dumps({"a": [1, 2.5, None, "x"]}))
fractions.Fraction(1, 3) + fractions.Fraction(1, 6)
sum(i * i for i in range(1000))
f"{3.14159:.2f} {1000000:,} {'x':>5}"
Decimal("0.1") + 1
try:
    [][1]
except IndexError as error:
    "".join(traceback.format_exception(error))
"""

_NUMERIC_WARM_UP = """
import numpy as np, numpy.random, numpy.linalg
a = np.arange(9.0).reshape(3, 3) + np.eye(3)
np.linalg.solve(a, np.ones(3)); np.linalg.eig(a); np.linalg.det(a); np.linalg.inv(a)
str(a); (a @ a).sum(axis=0); np.sort(np.random.rand(10)); np.roots([1, -3, 2]); np.linspace(0, 1, 5).mean()
import sympy as sp
x, y, n = sp.symbols("x y n")
sp.integrate(x**2 * sp.sin(x), x); sp.integrate(sp.exp(-x), (x, 0, sp.oo)); sp.diff(sp.sin(x) * x**2, x)
sp.solve(x**2 - 5*x + 6, x); sp.solve([x + y - 3, x - y - 1], [x, y]); sp.simplify((x**2 - 1) / (x - 1))
sp.factor(x**3 - 1); sp.expand((x + 1)**5); sp.limit(sp.sin(x) / x, x, 0); sp.series(sp.cos(x), x, 0, 4)
sp.factorint(360360); sp.isprime(10**9 + 7); sp.Rational(1, 3) + sp.sqrt(8); sp.N(sp.pi, 20)
sp.summation(n, (n, 1, 10)); sp.Matrix([[1, 2], [3, 4]]).det(); sp.nsolve(sp.cos(x) - x, x, 1)
sp.sympify("2*x + 1"); sp.latex(x / 2); sp.divisors(60); sp.binomial(10, 3)
sp.trigsimp(sp.sin(x)**2 + sp.cos(x)**2)
"""

_VERIFIER_WARM_UP = """
from math_verify import parse, verify
for gold, answer in [
    ("42", "\\\\boxed{42}"), ("\\\\frac{1}{2}", "$0.5$"), ("x^2+1", "$1+x^2$"), ("(1,2)", "$(1, 2)$"),
    ("\\\\sqrt{2}", "$\\\\sqrt{2}$"), ("\\\\{1,2\\\\}", "$\\\\{2,1\\\\}$"),
    ("3\\\\pi", "The answer is $3\\\\pi$"),
    ("x=3", "$x = 3$"), ("50%", "$50\\\\%$"), ("1,000", "1000"),
]:
    verify(parse(gold, parsing_timeout=None), parse(answer, parsing_timeout=None), timeout_seconds=None)
"""

FLAVOURS: Final[dict[str, Flavour]] = {
    flavour.name: flavour
    for flavour in (
        Flavour(name="stdlib", modules=_STDLIB, warm_up=_STDLIB_WARM_UP),
        Flavour(
            name="numeric",
            modules=(*_STDLIB, "numpy", "numpy.random", "sympy"),
            warm_up=_STDLIB_WARM_UP + _NUMERIC_WARM_UP,
            install="pip install numpy sympy",
        ),
        Flavour(
            name="verifier",
            modules=(*_STDLIB, "sympy", "math_verify", "reasoning_gym"),
            warm_up=_STDLIB_WARM_UP + _VERIFIER_WARM_UP,
            install="pip install 'math-verify[antlr4_13_2]' reasoning-gym",
        ),
    )
}
