# mypy: ignore-errors
# group: files
# tries: to write more than a file may have, by sending one file into another
# breach: it has more
# expect: ok
# output: HELD
# held-by: rlimits
# limits: file_bytes=65536
import os
import signal

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
source = os.open("source", os.O_RDWR | os.O_CREAT)
os.write(source, b"x" * 65_536)
target = os.open("target", os.O_RDWR | os.O_CREAT)
try:
    for _ in range(40):
        os.sendfile(target, source, 0, 65_536)
except OSError:
    pass
size = os.fstat(target).st_size
print(f"BREACH: {size}" if size > 65_536 else "HELD: no more")
