# mypy: ignore-errors
# group: files
# mode: session
# tries: to exchange a folder and a link to another folder between two steps along a fetched name
# breach: the answer has a file from outside
# expect: ok
# output: started
# forbid: swordfish|root:
# held-by: seccomp; the kernel keeps a look-up below the directory (RESOLVE_BENEATH)
# limits: files=400 wall_s=20
# fetch: here/a/passwd
import ctypes
import os
import threading

libc = ctypes.CDLL(None)
os.makedirs("here/a")
os.makedirs("there")
with open("here/a/passwd", "w") as file:
    file.write("A" * 4096)
for target, name in (("/etc", "there/a"), ("../" * 12 + "etc", "out")):
    try:
        os.symlink(target, name)
    except PermissionError:
        os.mkdir(name)


def swap() -> None:
    while True:
        libc.syscall(316, -100, b"here/a", -100, b"there/a", 2)
        libc.syscall(316, -100, b"here/a", -100, b"out", 2)
        libc.syscall(316, -100, b"here", -100, b"there", 2)


threading.Thread(target=swap, daemon=True).start()
print("started")
# %% cell
# tries: it again
# expect: ok
# output: FETCHED [01] files
# forbid: swordfish|root:
# fetch: here/a/passwd
import time

time.sleep(0.05)
# %% cell
# tries: it again, beside a long answer
# expect: ok
# output: FETCHED [01] files
# forbid: swordfish|root:
# fetch: here/a/passwd
print("x" * (3 << 19))
