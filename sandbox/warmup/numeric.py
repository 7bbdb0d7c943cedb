"""What programs do with numpy and sympy, done once before forking: both fill caches at first use, and what is
in a cache when the zygote settles no child has to compute or to write."""

import contextlib
import io

import numpy as np
import sympy as sp
from sympy import (
    Eq,
    I,
    Matrix,
    N,
    Poly,
    Rational,
    S,
    Sum,
    Symbol,
    diff,
    expand,
    factor,
    integrate,
    latex,
    limit,
    nsolve,
    oo,
    pi,
    simplify,
    solve,
    solveset,
    sqrt,
    symbols,
    sympify,
)


def arrays() -> None:
    a = np.array([[3.0, 1.0, 2.0], [1.0, 4.0, 1.0], [2.0, 1.0, 5.0]])
    print(a, np.linalg.solve(a, np.ones(3)), np.linalg.det(a), np.linalg.inv(a), a @ a, a.T, a.sum(axis=0))
    values, vectors = np.linalg.eig(a)
    print(
        values.round(3), vectors.shape, np.linalg.norm(a), np.roots([1, -3, 2]), np.polyfit([0, 1], [1, 2], 1)
    )
    print(
        np.linspace(0, 1, 5).mean(),
        np.arange(6).reshape(2, 3),
        np.sort(np.array([3, 1, 2])),
        np.cumsum([1, 2]),
    )
    print(np.random.default_rng(0).normal(size=2).round(3), np.random.rand(2).shape, np.where(a > 2)[0])
    print(np.sqrt(2.0), np.mean([1, 2]), np.array([1, 2]) * 2, repr(np.float64(0.5)), np.dot([1, 2], [3, 4]))


def equations() -> None:
    x, y, z = symbols("x y z")
    for k in (2, 3, 7):
        print(solve(Eq(3 * x + k, 11), x), solve(x**2 - 5 * x + k, x), solve(x / k - 4, x)[0])
        print(solve((Eq(x + y, 10 * k), Eq(x - y, 2)), (x, y)))
    print(solve([Eq(x + y + z, 6), Eq(x - y, 1), Eq(2 * z, 6)], [x, y, z]))
    print(solve([x**2 + y**2 - 25, x - y - 1], [x, y]), solve(x**3 - 6 * x**2 + 11 * x - 6, x))
    print(solve(sp.exp(x) - 5, x), solve(2**x - 8, x), solve(sp.log(x) - 1, x), solve(x * (x - 3), x))
    print(
        solve(x**2 + 1, x), solve(sqrt(x + 1) - 3, x), solve(x**2 < 4, x), solve(1 / x + 1 / (x + 1) - 1, x)
    )
    print(solveset(sp.sin(x), x, domain=sp.Interval(0, 2 * pi)), solveset(x**2 - 4, x, domain=S.Reals))
    print(solve(x**2 - y, x), nsolve(sp.cos(x) - x, x, 1), solve(2 * x + 0.5 - 3, x))


def expressions() -> None:
    x, y, a, b, n = symbols("x y a b n")
    r = Symbol("r", positive=True)
    print(simplify((x**2 - 1) / (x - 1)), expand((x + y) ** 3), factor(x**3 - 1), sp.together(1 / x + 1 / y))
    print(
        ((x + 1) ** 2 / 4).subs(x, 3),
        (x * y + sqrt(a)).subs({x: 2, a: 8}),
        simplify(sqrt(72) / 2),
        sqrt(a**2),
    )
    print(
        N(pi, 20),
        (pi * r**2).subs(r, 3).evalf(),
        Rational(3, 4) + Rational(1, 6),
        Rational("0.125"),
        S(1) / 3,
    )
    print(
        sp.apart(1 / (x * (x + 1))), sp.cancel((x**2 + x) / x), sp.collect(a * x + b * x, x), (2 * x).coeff(x)
    )
    print(
        Poly(x**3 + 2 * x + 1, x).all_coeffs(),
        sp.div(x**3 - 1, x - 1),
        sp.gcd(12, 18),
        sp.lcm(4, 6),
        sp.degree(x**2),
    )
    print(
        sp.trigsimp(sp.sin(x) ** 2 + sp.cos(x) ** 2),
        sp.cos(pi / 3),
        sp.expand_trig(sp.sin(2 * x)),
        sp.atan(1),
    )
    print(
        simplify((1 + I) ** 4),
        sp.Abs(3 + 4 * I),
        (x + 1).is_polynomial(),
        sp.expand_log(sp.log(x**2), force=True),
    )
    print(
        sympify("2*x + 1"),
        latex(x / 2 + sqrt(y)),
        sp.binomial(10, 3),
        sp.factorial(6),
        sp.floor(Rational(7, 2)),
    )
    print(
        sp.factorint(360360), sp.isprime(10**9 + 7), sp.divisors(60), list(sp.primerange(20)), sp.totient(12)
    )
    print(
        sp.lambdify(x, x**2 + 1)(3),
        repr((x + y / 3, sqrt(2), [a])),
        (x**2 + 0.5 * y).evalf(3),
        x > 2,
        Eq(x, 1),
    )
    print(
        sp.Interval(0, 1).union(sp.Interval(2, 3)),
        sp.Min(1, x),
        sp.Piecewise((x, x > 0), (0, True)),
        n.is_integer,
    )


def calculus() -> None:
    x, n = symbols("x n")
    f = sp.Function("f")
    print(diff(sp.sin(x) * x**2, x), diff(x**3 / 3 + sp.exp(2 * x), x, 2), diff(sp.log(x) / x, x))
    print(integrate(x**2, x), integrate(2 * x + 3, (x, 0, 4)), integrate(x**2 * sp.sin(x), x))
    print(integrate(sp.exp(-x), (x, 0, oo)), integrate(1 / x, x), integrate(sqrt(x), (x, 0, 1)))
    print(integrate(x * sp.exp(x), x), integrate(1 / (1 + x**2), x), integrate(sp.cos(3 * x), x))
    print(limit(sp.sin(x) / x, x, 0), limit((1 + 1 / x) ** x, x, oo), sp.series(sp.cos(x), x, 0, 4))
    print(sp.summation(n**2, (n, 1, 10)), Sum(1 / n**2, (n, 1, oo)).doit(), sp.product(n, (n, 1, 5)))
    print(sp.dsolve(f(x).diff(x) - f(x), f(x)))


def matrices() -> None:
    m = Matrix([[2, 1], [1, 3]])
    print(m.det(), m.inv(), m.eigenvals(), m * m, m.T, m.rref(), Matrix([1, 2]).dot(Matrix([3, 4])), m**2)


with contextlib.redirect_stdout(io.StringIO()):
    for part in (arrays, equations, expressions, calculus, matrices):
        part()
