# mypy: ignore-errors
# group: cpu
# tries: a higher priority than others
# breach: it has one
# expect: ok
# output: HELD
# held-by: capabilities
import os

try:
    print("BREACH:", os.nice(-5))
except OSError as error:
    print(f"HELD: {error!r}")
