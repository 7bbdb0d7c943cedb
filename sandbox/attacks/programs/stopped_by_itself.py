# group: cpu
# tries: to stop itself, so that it neither ends nor uses time
# breach: no end by the wall clock
# expect: timeout ok
# output: stopping
# held-by: wall clock, seccomp
# limits: wall_s=1
import os
import signal

print("stopping")
try:
    os.kill(os.getpid(), signal.SIGSTOP)
except OSError as error:
    print(f"HELD: {error!r}")
