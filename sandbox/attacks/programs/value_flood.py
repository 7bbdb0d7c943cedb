# mypy: ignore-errors
# group: output
# tries: a value without end, written past what cuts it
# breach: it is kept
# expect: output_limit memory_limit
# output: \A
# held-by: output limit
# limits: output_bytes=10000 wall_s=60
import os

while True:
    os.write(3, b"v" * 10**6)
