# group: output
# tries: to find descriptors that were left open: sockets, files, memory of the parent
# breach: one beyond the four of a child is open
# expect: ok
# output: HELD: \[0, 1, 2(, 3)?\]
# held-by: close_range
import os

found = []
for fd in range(4096):
    try:
        os.fstat(fd)
    except OSError:
        continue
    found.append(fd)
print(f"HELD: {found}" if set(found) <= {0, 1, 2, 3} else f"BREACH: {found}")
