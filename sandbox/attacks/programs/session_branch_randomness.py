# group: sessions
# mode: session
# tries: to predict the secrets and identifiers of a branch, which has all of its origin's state
# breach: two branches draw the same
# expect: ok
# output: ready
# held-by: the kernel's generator
# compare: differ
import random
import secrets
import uuid

random.seed(7)
print("ready")
# %% branch
# tries: to draw; `random` itself goes on from the state that was copied
# expect: ok
# output: drawn
assert random.random() == 0.32383276483316237
print("drawn", secrets.token_hex(8), uuid.uuid4())
# %% branch
# tries: to draw in another branch
# expect: ok
# output: drawn
assert random.random() == 0.32383276483316237
print("drawn", secrets.token_hex(8), uuid.uuid4())
