# mypy: ignore-errors
# group: persistence
# tries: to leave a mark on the working directory itself: extended attributes, mode, times
# breach: see the next call
# expect: ok
# output: tried
# held-by: a scratch directory per call, seccomp
import os

for mark in (
    lambda: os.setxattr(".", "user.letter", b"x"),
    lambda: os.chmod(".", 0o711),
    lambda: os.utime(".", (1, 1)),
):
    try:
        mark()
    except OSError:
        continue
print("tried")
# %% call
# tries: to find the mark of the first call
# expect: ok
# output: HELD
import os

try:
    names = os.listxattr(".")
except OSError:
    names = []
status = os.stat(".")
marked = "user.letter" in names or status.st_mtime == 1 or status.st_mode & 0o777 == 0o711
print("BREACH: marked" if marked else "HELD")
