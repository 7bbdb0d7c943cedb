# mypy: ignore-errors
# group: output
# tries: to read back what it wrote to standard output
# breach: it can be read
# expect: ok
# output: HELD
# held-by: descriptors
import os

print("first", flush=True)
try:
    print("BREACH:", os.read(1, 100))
except OSError as error:
    print(f"HELD: {error!r}")
