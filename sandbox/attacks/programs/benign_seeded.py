# group: benign
# tries: nothing bad: to draw random numbers under a seed given by the caller
# expect: ok
# output: ^0\.32383276483316237 154$
# seed: 7
# compare: same
import random

print(random.random(), random.randrange(1000))
# %% call
# tries: to draw them again
# expect: ok
# output: ^0\.32383276483316237 154$
# seed: 7
import random

print(random.random(), random.randrange(1000))
