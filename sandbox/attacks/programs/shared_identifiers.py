# group: others
# tries: to predict the secrets and identifiers of another call
# breach: two calls draw the same
# expect: ok
# output: HELD: drawn
# held-by: the kernel's generator
# compare: differ
import secrets
import uuid

print("HELD: drawn", secrets.token_hex(8), uuid.uuid4())
# %% call
# tries: to draw again
# expect: ok
# output: HELD: drawn
import secrets
import uuid

print("HELD: drawn", secrets.token_hex(8), uuid.uuid4())
