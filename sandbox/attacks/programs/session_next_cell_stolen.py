# group: sessions
# mode: session
# tries: to say that it has ended, and then to read the cells of its caller and to answer for the interpreter
# breach: none beyond its own session: a session's answers are its own word; the clock must still hold
# expect: ok lost signaled
# output: \A
# held-by: wall clock
# limits: wall_s=3
import os
import struct

os.write(3, struct.pack("=BiQI", 1, 0, 0, 0))
while os.read(3, 1 << 16):
    pass
# %% cell
# tries: to have an answer
# expect: timeout lost signaled
# output: \A
print("BREACH: the interpreter runs it")
