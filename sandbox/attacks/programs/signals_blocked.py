# group: cpu
# tries: to block every signal and to wait for none
# breach: no end by the wall clock
# expect: timeout
# output: blocked
# held-by: wall clock
# limits: wall_s=1
import os
import signal

signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
print("blocked")
os.read(os.pipe()[0], 1)
print("BREACH: read something")
