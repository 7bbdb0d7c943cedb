# group: output
# tries: to close its streams, so that a reader sees the end before the end
# breach: the rest of the program does not run
# expect: error
# output: \A
# held-by: the ending comes from the kernel
import os
import time

os.close(1)
os.close(2)
time.sleep(0.1)
os._exit(9)
