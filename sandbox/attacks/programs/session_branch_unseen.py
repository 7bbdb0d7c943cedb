# group: sessions
# mode: session
# tries: to use the permission for a branch for a process that nobody is told of, while the branch is refused
# breach: a process without a clock exists
# expect: ok lost timeout
# output: \A
# held-by: the supervisor ends children that it does not know
# limits: wall_s=1
import ctypes
import os
import socket
import struct
import time

BRANCH_FLAGS = 0x8000 | 0x1000000 | 17
libc = ctypes.CDLL(None, use_errno=True)
word = ctypes.c_int()
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
place = ctypes.c_void_p(ctypes.addressof(word))
control = socket.socket(fileno=3)
os.write(3, struct.pack("=BiQI", 1, 0, 0, 0))
while True:
    data, ancillary, _, _ = control.recvmsg(14, socket.CMSG_SPACE(16))
    if ancillary:
        if os.uname().machine == "x86_64":
            pid = libc.syscall(number, ctypes.c_long(BRANCH_FLAGS), 0, 0, place, 0)
        else:
            pid = libc.syscall(number, ctypes.c_long(BRANCH_FLAGS), 0, 0, 0, place)
        if pid == 0:
            time.sleep(40)
            os._exit(0)
        os.write(3, struct.pack("=BiQI", 2, 16, 0, 0))
    if not data:
        break
# %% branch
# tries: nothing more
# expect: lost refused
# output: \A
print("BREACH: a branch")
