# group: others
# tries: to leave its streams such that whoever writes more than fits is told so
# breach: a later call loses what it prints
# expect: ok
# output: HELD
# held-by: pipes of its own
import os

for fd in range(64):
    try:
        os.set_blocking(fd, False)
    except OSError:
        continue
print("HELD")
# %% call
# tries: to print more than a pipe holds
# expect: ok
# output: HELD$
# truncated: no
# limits: output_bytes=1000000
print("x" * 500_000)
print("HELD")
