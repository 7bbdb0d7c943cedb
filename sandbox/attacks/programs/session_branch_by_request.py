# group: sessions
# mode: session
# tries: to ask the supervisor for a branch from inside, by writing what such a request may look like
# breach: a second process exists afterwards
# expect: ok error lost timeout signaled
# output: (asked|\A)
# held-by: only the supervisor asks
import os
import struct

for kind in range(32):
    for size in (4, 8, 12, 16):
        try:
            os.write(3, bytes([kind]) + struct.pack("=QQ", 1, 1)[:size])
        except OSError:
            break
print("asked")
