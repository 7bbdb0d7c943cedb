# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to hold more descriptors with every cell
# breach: it has more than its limit
# expect: ok
# output: HELD
# held-by: rlimits
import os

held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print("HELD:", error.strerror)

# %% cell
# tries: to have more
# expect: ok
# output: HELD: True
try:
    while len(held) < 1000:
        held.append(os.dup(held[0]))
except OSError as error:
    print("HELD:", len(held) <= 256, error.strerror)
else:
    print("BREACH:", len(held))
