# mypy: ignore-errors
# group: cpu
# tries: a higher priority than others
# breach: it has one
# expect: ok
# output: HELD
# held-by: capabilities
import os

before = os.nice(0)
try:
    after = os.nice(-5)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH:" if after < before else "HELD:", before, after)
