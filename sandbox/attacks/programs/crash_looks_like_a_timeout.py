# group: output
# tries: to look as if the supervisor had killed it
# breach: the status is timeout
# expect: signaled
# output: before
# held-by: the supervisor knows whom it killed
import os
import signal

print("before")
os.kill(os.getpid(), signal.SIGKILL)
