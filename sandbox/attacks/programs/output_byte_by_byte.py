# mypy: ignore-errors
# group: output
# tries: to keep the supervisor busy with output of single bytes
# breach: another call gets no answer
# expect: ok output_limit
# output: \.
# held-by: an event loop that serves all
import os
import time

end = time.monotonic() + 0.5
while time.monotonic() < end:
    os.write(1, b".")
print("HELD")

# %% meanwhile
# tries: to run at the same time
# expect: ok
# output: HELD
print("HELD:", 6 * 7)
