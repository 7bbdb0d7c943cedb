# group: others
# tries: to have the interpreter's signal handler write into each descriptor that it has
# breach: a later call is upset
# expect: ok
# output: HELD: \d+
# held-by: descriptors of its own
import os
import signal

signal.signal(signal.SIGUSR1, lambda *_: None)
tried = 0
for fd in range(3, 256):
    try:
        os.set_blocking(fd, False)
        signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    except (OSError, ValueError):
        continue
    tried += 1
    for _ in range(2000):
        signal.raise_signal(signal.SIGUSR1)
signal.set_wakeup_fd(-1)
print(f"HELD: {tried}")
# %% call
# tries: to run
# expect: ok
# output: HELD
# value: none
print("HELD")
