# group: sessions
# mode: session
# tries: to take the order for a branch itself, and to name another process (the supervisor) as the branch
# breach: the supervisor takes that process for its child, and kills it when the branch's time is over
# expect: ok lost timeout
# output: \A
# held-by: the kernel says who speaks on a new branch's socket
# limits: wall_s=1
import array
import os
import socket
import struct

control = socket.socket(fileno=3)
os.write(3, struct.pack("=BiQI", 1, 0, 0, 0))
while True:
    data, ancillary, _, _ = control.recvmsg(14, socket.CMSG_SPACE(16))
    for _, _, payload in ancillary:
        ends = array.array("i", payload)
        os.write(ends[3], struct.pack("=ci", b"R", os.getppid()))
        os.write(3, struct.pack("=BiQI", 2, 0, 0, 0))
    if not data:
        break
# %% branch
# tries: to use the branch that is another process
# expect: lost refused
# output: \A
print("BREACH: a branch")
