# group: output
# tries: to shut the control channel down in both directions and to go on
# breach: the supervisor takes it for an end, or waits
# expect: error
# output: after
# held-by: the ending comes from the kernel
import os
import socket
import time

socket.socket(fileno=os.dup(3)).shutdown(socket.SHUT_RDWR)
time.sleep(0.1)
print("after")
os._exit(5)
