# group: sessions
# mode: session
# tries: to predict the random numbers of a branch
# breach: two branches draw the same
# expect: ok
# output: ready
# held-by: fresh seeds
# compare: differ
import random
import uuid

print("ready")
# %% branch
# tries: to draw
# expect: ok
# output: drawn
print("drawn", random.random(), uuid.uuid4())
# %% branch
# tries: to draw in another branch
# expect: ok
# output: drawn
print("drawn", random.random(), uuid.uuid4())
