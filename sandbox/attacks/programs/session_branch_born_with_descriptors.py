# group: sessions
# mode: session
# tries: to take the order for a branch itself, and to send 250 descriptors with the words that it is born
# breach: the supervisor keeps them, and has none left for others
# expect: ok lost timeout
# output: \A
# held-by: the filter lets nobody send descriptors; the supervisor keeps none that it did not ask for
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
        line = socket.socket(fileno=ends[3], family=socket.AF_UNIX, type=socket.SOCK_STREAM)
        many = array.array("i", [ends[0]] * 250)
        try:
            line.sendmsg(
                [struct.pack("=ci", b"R", os.getpid())], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)],
            )
        except OSError:
            line.send(struct.pack("=ci", b"R", os.getpid()))
        os.write(3, struct.pack("=BiQI", 2, 0, 0, 0))
    if not data:
        break
# %% branch
# tries: to use the branch
# expect: lost refused
# output: \A
print("BREACH: a branch")
