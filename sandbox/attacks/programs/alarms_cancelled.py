# group: cpu
# tries: to cancel the timers that an in-process clock would use
# breach: no end by the wall clock
# expect: timeout
# output: cancelled
# held-by: wall clock
# limits: wall_s=1
import signal
import sys
import threading

signal.alarm(0)
for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
    signal.setitimer(timer, 0)
sys.setswitchinterval(1000)
threading.settrace(None)
sys.settrace(None)
print("cancelled")
while True:
    pass
