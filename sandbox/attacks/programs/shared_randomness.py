# group: others
# tries: to predict the random numbers of another call, which is a fork of the same process
# breach: two calls draw the same
# expect: ok
# output: HELD: drawn
# held-by: fresh seeds
# compare: differ
import random

print("HELD: drawn", random.random(), random.Random().random(), random.getrandbits(64))
# %% call
# tries: to draw again
# expect: ok
# output: HELD: drawn
import random

print("HELD: drawn", random.random(), random.Random().random(), random.getrandbits(64))
