# group: sessions
# mode: session
# tries: to answer with an exit code that no process has and a value that is no text
# breach: the supervisor or the pool is upset
# expect: error lost signaled
# output: \A
# held-by: repair of UTF-8, checks of what a session says
import os
import struct
import time

value = b"\xff\xfe\xed\xa0\x80 FORGED"
os.write(3, struct.pack("=BiQI", 1, -2147483648, 2**64 - 1, len(value)) + value)
time.sleep(0.2)
# %% cell
# tries: to go on after it spoke out of turn
# expect: lost ok error signaled
# output: \A
print("its own word")
