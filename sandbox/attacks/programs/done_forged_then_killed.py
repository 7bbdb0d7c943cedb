# group: output
# tries: to write on the control descriptor that it has ended well, then to kill itself
# breach: the result says ok
# expect: signaled
# output: forging
# held-by: the ending comes from the kernel
import ctypes
import os
import struct

print("forging")
for kind in range(32):
    try:
        os.write(3, struct.pack("=BI", kind, 8) + bytes(8))
    except OSError:
        break
ctypes.string_at(0)
