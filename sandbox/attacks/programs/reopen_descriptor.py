# group: files
# tries: to open its descriptors again through /proc, for what they were not given for
# breach: its input can be written, or bytes come out of a pipe that it did not put in
# expect: ok
# output: HELD: \d+
# held-by: a sealed file, pipes of its own
# stdin: facts
import os

tried = 0
for fd in range(4):
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        tried += 1
        try:
            other = os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK)
        except OSError:
            continue
        if fd == 0 and flags != os.O_RDONLY:
            try:
                os.write(other, b"changed")
            except OSError:
                continue
            print("BREACH: the input is changed")
        elif fd > 0 and flags != os.O_WRONLY:
            try:
                found = os.read(other, 100)
            except OSError:
                continue
            print(f"BREACH: {found!r}")
print(f"HELD: {tried}")
