# group: files
# tries: to exchange a file of its own with one of the caller (RENAME_EXCHANGE)
# breach: they are exchanged
# expect: ok
# output: HELD: errno
# held-by: landlock, seccomp
# stdin: facts
import ctypes
import json
import os

RENAME_EXCHANGE, AT_FDCWD = 2, -100
libc = ctypes.CDLL(None, use_errno=True)
bait = json.loads(input())["bait_file"].encode()
try:
    os.close(os.open("mine", os.O_CREAT | os.O_WRONLY))
except OSError:
    pass
result = libc.renameat2(AT_FDCWD, b"mine", AT_FDCWD, bait, RENAME_EXCHANGE)
print("BREACH: exchanged" if result == 0 else f"HELD: errno {ctypes.get_errno()}")
