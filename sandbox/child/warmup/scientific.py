"""Typical scipy code, run once before forking."""

import contextlib
import io

import numpy as np
from scipy import constants, integrate, interpolate, linalg, optimize, special, stats
from scipy.sparse import csr_matrix
from scipy.spatial import distance

with contextlib.redirect_stdout(io.StringIO()):
    a = np.array([[4.0, 1.0], [2.0, 3.0]])
    print(linalg.solve(a, [1.0, 2.0]), linalg.eigvals(a), linalg.expm(a), linalg.det(a), linalg.lu(a)[2])
    print(optimize.brentq(lambda x: x**2 - 2, 0, 2), optimize.fsolve(lambda x: x**3 - 1, 2.0))
    print(optimize.minimize(lambda v: (v[0] - 1) ** 2 + v[1] ** 2, [0.0, 0.0]).x.round(3))
    print(optimize.linprog([-1, -2], A_ub=[[1, 1]], b_ub=[4]).x, optimize.root(np.cos, 1.0).x)
    print(optimize.curve_fit(lambda x, k: k * x, [1.0, 2.0, 3.0], [2.0, 4.0, 6.0])[0])
    print(integrate.quad(np.exp, 0, 1)[0], integrate.solve_ivp(lambda t, y: -y, (0, 1), [1.0]).y[0, -1])
    print(stats.norm.cdf(1.96), stats.binom.pmf(3, 10, 0.5), stats.t.ppf(0.975, 9), stats.poisson.pmf(2, 3))
    print(stats.ttest_ind([1.0, 2.0, 3.0], [2.0, 3.0, 5.0]).pvalue, stats.linregress([0, 1, 2], [1, 3, 5]).slope)
    print(special.comb(10, 3, exact=True), special.gamma(0.5), special.erf(1.0), constants.g)
    print(interpolate.interp1d([0, 1], [0, 2])(0.5), csr_matrix(a).sum(), distance.euclidean([0, 0], [3, 4]))
