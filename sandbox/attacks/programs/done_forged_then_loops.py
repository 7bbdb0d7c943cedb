# group: output
# tries: to write on the control descriptor that it has ended well, then to run for ever
# breach: the result says ok, or none comes
# expect: timeout
# output: forging
# held-by: wall clock, the ending comes from the kernel
# limits: wall_s=1
import os
import struct

print("forging")
for kind in range(32):
    for size in ("=I", "=Q"):
        try:
            os.write(3, bytes([kind]) + struct.pack(size, 4) + b"\0\0\0\0")
        except OSError:
            break
while True:
    pass
