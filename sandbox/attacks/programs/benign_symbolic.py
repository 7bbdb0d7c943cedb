# group: benign
# tries: nothing bad: an integral
# expect: ok
# output: x\*\*3/3
# flavour: numeric
# limits: wall_s=20 cpu_s=20
import sympy

x = sympy.symbols("x")
sympy.integrate(x**2, x)
