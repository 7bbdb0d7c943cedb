# group: sessions
# mode: session
# tries: to announce an answer of four gigabytes and to send it
# breach: the supervisor keeps it all
# expect: output_limit timeout lost
# output: \A
# held-by: output limit
# limits: wall_s=2 output_bytes=10000
import os
import struct

os.write(3, struct.pack("=BiQI", 1, 0, 0, 2**32 - 1))
while True:
    os.write(3, b"f" * 65536)
