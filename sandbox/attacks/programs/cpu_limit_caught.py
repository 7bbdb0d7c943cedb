# group: cpu
# tries: to catch the signal of the processor time limit
# breach: it works on past the hard limit
# expect: timeout
# output: started
# held-by: rlimits
# limits: wall_s=20 cpu_s=1
# loosened: wall_s=20 cpu_s=10
import signal
import time

signal.signal(signal.SIGXCPU, signal.SIG_IGN)
print("started")
while time.process_time() < 3:
    pass
print("BREACH: three seconds of work")
