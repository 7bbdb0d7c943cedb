# group: output
# tries: to fill the control descriptor without end
# breach: the supervisor keeps it all, or waits for the wall clock
# expect: output_limit error signaled timeout
# output: flooding
# held-by: output limit
# limits: output_bytes=10000 wall_s=2
import os

print("flooding")
while True:
    os.write(3, b"f" * 65536)
