# group: cpu
# tries: to ignore every signal that can be ignored, then to run for ever
# breach: no end by the wall clock
# expect: timeout
# output: deaf
# held-by: wall clock
# limits: wall_s=1
import signal

for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
print("deaf")
while True:
    pass
