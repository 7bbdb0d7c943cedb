# mypy: ignore-errors
# group: benign
# mode: session
# tries: nothing bad: cells that share their state, an error between them
# expect: ok
# output: \A
import math


def area(r: float) -> float:
    return math.pi * r**2
# %% cell
# expect: error
# output: NameError: name 'undefined'
# may-raise: NameError
undefined
# %% cell
# expect: ok
# output: ^12\.57$
round(area(2), 2)
