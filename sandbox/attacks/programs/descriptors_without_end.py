# mypy: ignore-errors
# group: output
# tries: to open descriptors without end
# breach: more than 256 are open
# expect: ok
# output: HELD: \d+
# held-by: rlimits
import os

opened = []
try:
    while len(opened) < 2000:
        opened.append(os.dup(0))
except OSError:
    pass
print(f"HELD: {len(opened)}" if len(opened) <= 256 else f"BREACH: {len(opened)}")
