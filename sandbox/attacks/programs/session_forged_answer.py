# group: sessions
# mode: session
# tries: to write the answer of the next cell on the control descriptor ahead of time
# breach: the next cell's result is the forged one
# expect: ok error lost timeout signaled
# output: (forging|\A)
# held-by: the supervisor numbers its questions, and drops a session that answers without being asked
import os
import struct

print("forging")
for kind in range(32):
    for length in (0, 6, 10):
        try:
            os.write(3, struct.pack("=BI", kind, length) + b"FORGED"[:length])
        except OSError:
            break
# %% cell
# tries: to get the true answer
# expect: ok lost signaled
# output: (real 42|lost)
# forbid: FORGED
print("real", 6 * 7)
# %% cell
# tries: to get the true answer once more
# expect: ok lost signaled
# output: (real 43|lost)
# forbid: FORGED
print("real", 43)
