# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to say that the cell is over, then to go on: the supervisor might stop the clock
# breach: no end by the wall clock
# expect: timeout
# output: forging
# held-by: wall clock
# limits: wall_s=1
import os
import struct

print("forging")
for kind in range(16):
    try:
        os.write(3, struct.pack("=BIII", kind, 0, 0, 0)[: 1 + kind % 9])
    except OSError:
        break
while True:
    pass
# %% cell
# tries: to go on after a cell that was killed
# expect: lost
# output: died
print("BREACH: alive")
