# group: cpu
# tries: to run for ever
# breach: it counts past the wall clock
# expect: timeout
# output: started
# held-by: wall clock
# limits: wall_s=0.3
# loosened: wall_s=4 cpu_s=8
import time

print("started")
begin = time.monotonic()
while time.monotonic() < begin + 1:
    pass
print("BREACH: a second")
