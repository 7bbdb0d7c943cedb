# group: sessions
# mode: session
# tries: to name its own, older process as the branch, so that one process is two sessions
# breach: the branch has the same process id and answers
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
answered = False
while not answered:
    data, ancillary, _, _ = control.recvmsg(14, socket.CMSG_SPACE(16))
    for _, _, payload in ancillary:
        ends = array.array("i", payload)
        os.write(ends[3], struct.pack("=ci", b"R", os.getpid()))
        os.write(3, struct.pack("=BiQI", 2, 0, 0, 0))
        os.read(ends[3], 14)
        os.write(ends[1], b"BREACH: one process, two sessions")
        os.write(ends[3], struct.pack("=BiQI", 1, 0, 0, 0))
        answered = True
# %% branch
# tries: to use the branch
# expect: lost refused
# output: \A
print("the branch")
