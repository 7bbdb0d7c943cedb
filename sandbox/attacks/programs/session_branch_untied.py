# group: sessions
# mode: session
# tries: to fork a branch itself that never asks for its death with the supervisor
# breach: a branch that lives on, without a clock, when the supervisor is killed
# expect: ok lost timeout
# output: \A
# held-by: the supervisor is asked about each branch's tie, and takes none without
# limits: wall_s=1
import array
import ctypes
import os
import signal
import socket
import struct
import time

BRANCH_FLAGS = 0x8000 | 0x1000000 | 17
libc = ctypes.CDLL(None, use_errno=True)
word = ctypes.c_int()
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
place = ctypes.c_void_p(ctypes.addressof(word))
last = (place, 0) if os.uname().machine == "x86_64" else (0, place)
control = socket.socket(fileno=3)
os.write(3, struct.pack("=BiQI", 1, 0, 0, 0))
while True:
    data, ancillary, _, _ = control.recvmsg(14, socket.CMSG_SPACE(16))
    for _, _, payload in ancillary:
        ends = array.array("i", payload)
        if libc.syscall(number, ctypes.c_long(BRANCH_FLAGS), 0, 0, *last) == 0:
            os.write(ends[3], struct.pack("=ci", b"R", os.getpid()))
            signal.signal(signal.SIGXCPU, signal.SIG_IGN)
            time.sleep(40)
            os._exit(0)
        os.write(3, struct.pack("=BiQI", 2, 0, 0, 0))
    if not data:
        break
# %% branch
# tries: to use it
# expect: lost refused
# output: \A
print("BREACH: a branch")
