# mypy: ignore-errors
# group: files
# tries: to fill the disk with files that have lost their names, so that counting names finds none
# breach: more than 64 such files are held
# expect: ok
# output: HELD: \d+
# held-by: seccomp, the scratch directory's quota
import os

held = []
try:
    while len(held) < 200:
        fd = os.open("name", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.unlink("name")
        os.write(fd, b"x" * 1000)
        held.append(fd)
except OSError:
    pass
print(f"HELD: {len(held)}" if len(held) <= 64 else f"BREACH: {len(held)} files")
