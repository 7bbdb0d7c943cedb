# group: cpu
# tries: to hold its place without using the processor
# breach: it wakes
# expect: timeout
# output: started
# held-by: wall clock
# limits: wall_s=0.3
# loosened: wall_s=4
import time

print("started")
time.sleep(1)
print("BREACH: slept a second")
