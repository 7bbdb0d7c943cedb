"""Typical numpy and sympy code, run before forking with different numbers in each round.

The first round fills caches. The others make the interpreter specialize frequent code; otherwise each child
would specialize it and change shared pages.
"""

import contextlib
import io

import numpy as np
import sympy as sp
from sympy import Eq, N, Rational, S, diff, expand, integrate, limit, oo, pi, simplify, solve, sqrt, symbols

ROUNDS = 3


def arrays(k: int) -> None:
    a = np.array([[3.0 + k, 1.0, 2.0], [1.0, 4.0, 1.0], [2.0, 1.0, 5.0]])
    print(a, np.linalg.solve(a, np.ones(3)), np.linalg.det(a), np.linalg.inv(a), a @ a, a.T, a.sum(axis=0))
    values, vectors = np.linalg.eig(a)
    print(values.round(3), vectors.shape, np.linalg.norm(a), np.roots([1, -3, 2]), np.polyfit([0, 1], [1, k], 1))
    print(np.linspace(0, 1, 5).mean(), np.arange(6).reshape(2, 3), np.sort(np.array([3, 1, k])), np.cumsum([1, 2]))
    print(np.random.default_rng(k).normal(size=2).round(3), np.random.rand(2).shape, np.where(a > 2)[0])
    print(np.sqrt(2.0), np.mean([1, 2]), np.array([1, 2]) * 2, repr(np.float64(0.5)), np.dot([1, 2], [3, 4]))


def equations(k: int) -> None:
    x, y, z = symbols("x y z")
    print(solve(Eq(3 * x + k, 11), x), solve(x / (k + 2) - 4, x)[0], solve(Eq(x + x * Rational(k, 7), 40), x))
    print(solve((Eq(x + y, 10 * k), Eq(x - y, 2)), (x, y)), solve((Eq(4 * x + k * y, 26), Eq(x, 2 * y)), (x, y)))
    print(solve([Eq(x + y + z, 6 + k), Eq(x - y, 1), Eq(2 * z, 6)], [x, y, z]), solve(2 * x + 0.5 - k, x))
    print(solve(x**2 - (k + 3) * x + 3 * k, x), solve(x**2 + k * x + 5, x), solve(x * (x - k), x))
    if k > 2:  # rare and slow code runs once
        return
    print(solve([x**2 + y**2 - 25, x - y - 1], [x, y]), solve(x**3 - 6 * x**2 + 11 * x - 6, x))
    print(solve(sp.exp(x) - 5, x), solve(2**x - 8, x), solve(sp.log(x) - 1, x), solve(sqrt(x + 1) - 3, x))
    print(solve(x**2 < 4 + k, x), solve(1 / x + 1 / (x + 1) - k, x), solve(x**2 - y, x), solve(x**2 + 1, x))
    print(sp.solveset(sp.sin(x), x, domain=sp.Interval(0, 2 * pi)), sp.solveset(x**2 - 4, x, domain=S.Reals))
    print(sp.nsolve(sp.cos(x) - x, x, 1))


def expressions(k: int) -> None:
    x, y, a, b = symbols("x y a b")
    r = sp.Symbol("r", positive=True)
    print(simplify((x**2 - k**2) / (x - k)), expand((x + k * y) ** 3), sp.factor(x**2 + (k + 1) * x + k))
    print(((x + k) ** 2 / 4).subs(x, 3), (x * y + sqrt(a)).subs({x: 2, a: 8}), simplify(sqrt(72 * k) / 2))
    print(N(pi, 20), (pi * r**2).subs(r, k).evalf(), Rational(3, 4) + Rational(1, 6 + k), Rational("0.125"))
    print(sp.together(1 / x + k / y), sp.apart(1 / (x * (x + k))), sp.cancel((x**2 + x) / x), sqrt(a**2 + k))
    print(sp.collect(a * x + b * x, x), (k * x).coeff(x), sp.Poly(x**3 + k * x + 1, x).all_coeffs())
    print(sp.div(x**3 - k, x - 1), sp.gcd(12, 18), sp.lcm(4, 6), sp.degree(x**2), S(k) / 3, x > k, Eq(x, k))
    print(sp.trigsimp(sp.sin(x) ** 2 + sp.cos(x) ** 2), sp.cos(pi / 3), sp.sin(pi * k / 6), sp.atan(1), sp.tan(x))
    print(simplify((k + sp.I) ** 4), sp.Abs(3 + 4 * sp.I), sp.sympify("2*x + 1"), sp.latex(x / 2 + sqrt(y)))
    print(sp.binomial(10, k), sp.factorial(6), sp.floor(Rational(7, 2)), sp.factorint(360 + k), sp.isprime(97 + k))
    print(sp.divisors(60), list(sp.primerange(20)), sp.totient(12), sp.lambdify(x, x**2 + k)(3), sp.Min(1, x))
    print(repr((x + y / 3, sqrt(2), [a])), (x**2 + 0.5 * y).evalf(3), sp.Piecewise((x, x > 0), (0, True)))
    print(sp.Interval(0, 1).union(sp.Interval(2, 3)), sp.expand_trig(sp.sin(2 * x)), sp.log(8, 2), (-8) ** S(2))


def calculus(k: int) -> None:
    x, n = symbols("x n")
    f = sp.Function("f")
    print(diff(sp.sin(x) * x**k, x), diff(x**3 / 3 + sp.exp(2 * x), x, 2), diff(sp.log(x) / x, x), f(x))
    print(integrate(k * x**2, x), integrate(x**k, x), integrate(2 * x + k, (x, 0, 4)), integrate(sqrt(x), (x, 0, k)))
    print(limit(sp.sin(k * x) / x, x, 0), sp.summation(n**2, (n, 1, 10 + k)), sp.product(n, (n, 1, 5)))
    if k > 2:
        return
    print(integrate(x**2 * sp.sin(x), x), integrate(sp.exp(-k * x), (x, 0, oo)), integrate(1 / x, x))
    print(integrate(x * sp.exp(x), x), integrate(1 / (1 + x**2), x), integrate(sp.cos(3 * x), x))
    print(limit((1 + 1 / x) ** x, x, oo), sp.series(sp.cos(x), x, 0, 4), sp.Sum(1 / n**2, (n, 1, oo)).doit())


def matrices(k: int) -> None:
    m = sp.Matrix([[k + 2, 1], [1, 3]])
    print(m.det(), m.inv(), m.eigenvals(), m * m, m.T, m.rref(), sp.Matrix([1, 2]).dot(sp.Matrix([3, 4])), m**2)


with contextlib.redirect_stdout(io.StringIO()):
    for number in range(2, 2 + ROUNDS):
        for part in (arrays, equations, expressions, calculus, matrices):
            part(number)
