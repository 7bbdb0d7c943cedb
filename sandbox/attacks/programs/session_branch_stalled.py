# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to take the order for a branch and never to answer
# breach: the caller waits for ever
# expect: ok lost timeout
# output: \A
# held-by: a clock of the supervisor
# limits: wall_s=1
import os
import socket
import struct
import time

control = socket.socket(fileno=3)
os.write(3, struct.pack("=BiQI", 1, 0, 0, 0))
control.recvmsg(14, socket.CMSG_SPACE(16))
while True:
    time.sleep(1)
# %% branch
# tries: to have an answer
# expect: lost refused
# output: \A
print("BREACH: a branch")
