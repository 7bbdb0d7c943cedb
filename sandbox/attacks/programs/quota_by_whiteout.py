# group: files
# tries: renames that leave a mark at the old name (RENAME_WHITEOUT): a new file that no open call asks for
# breach: more than 64 names
# expect: ok
# output: HELD: \d+
# held-by: the scratch directory's quota, landlock
import ctypes
import os

RENAME_WHITEOUT, AT_FDCWD = 4, -100
libc = ctypes.CDLL(None, use_errno=True)
count = 0
try:
    os.close(os.open("n0", os.O_CREAT | os.O_WRONLY))
except OSError:
    print("HELD: 0")
else:
    while count < 300:
        if libc.renameat2(AT_FDCWD, b"n%d" % count, AT_FDCWD, b"n%d" % (count + 1), RENAME_WHITEOUT) != 0:
            break
        count += 1
    names = len(os.listdir("."))
    print(f"HELD: {names}" if names <= 64 else f"BREACH: {names} names")
