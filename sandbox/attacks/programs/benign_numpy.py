# group: benign
# tries: nothing bad: linear algebra
# expect: ok
# output: ^\[2\. 3\.\] 10\.0$
# flavour: numeric
import numpy as np

matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
solution = np.linalg.solve(matrix, np.array([7.0, 11.0]))
print(solution, np.random.default_rng(1).random((100, 100)).shape[0] / 10)
