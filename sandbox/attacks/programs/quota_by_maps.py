# mypy: ignore-errors
# group: files
# tries: to hold files that have no name and no descriptor, but are mapped
# breach: more than twice the 64 that a call may have
# expect: ok
# output: HELD: \d+
# held-by: seccomp, the scratch directory's quota
import mmap
import os

held = []
try:
    while len(held) < 1000:
        fd = os.open("name", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.unlink("name")
        os.write(fd, b"x" * 4096)
        held.append(mmap.mmap(fd, 4096))
        os.close(fd)
except OSError:
    pass
print(f"HELD: {len(held)}" if len(held) <= 256 else f"BREACH: {len(held)} files")
