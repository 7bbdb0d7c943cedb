# group: others
# tries: to predict numpy's global generator in another call
# breach: two calls draw the same
# expect: ok
# output: HELD: drawn
# held-by: fresh seeds
# compare: differ
# flavour: numeric
import numpy as np

print("HELD: drawn", np.random.random(), np.random.randint(1 << 30), np.random.default_rng().random())
# %% call
# tries: to draw again
# expect: ok
# output: HELD: drawn
# flavour: numeric
import numpy as np

print("HELD: drawn", np.random.random(), np.random.randint(1 << 30), np.random.default_rng().random())
