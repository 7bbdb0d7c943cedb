# mypy: ignore-errors
# group: files
# mode: session
# tries: to exchange a file and a link, or a folder, between the supervisor's look and its reading
# breach: the answer has the caller's file
# expect: ok
# output: started
# forbid: swordfish
# held-by: seccomp; the supervisor looks at the file that it has opened, not at a name
# limits: files=400 wall_s=20
# fetch: one*20
import ctypes
import os
import threading

libc = ctypes.CDLL(None)
for number in range(60):
    with open(f"one{number}", "w") as file:
        file.write("A" * 4096)
    try:
        os.symlink("/proc/self/environ" if number % 2 else "/etc/passwd", f"two{number}")
    except PermissionError:
        os.mkdir(f"two{number}")


def swap() -> None:
    while True:
        for number in range(60):
            libc.syscall(316, -100, b"one%d" % number, -100, b"two%d" % number, 2)


threading.Thread(target=swap, daemon=True).start()
print("started")
# %% cell
# tries: it again, while files of 60 names are fetched
# expect: ok
# output: FETCHED \d+ files
# forbid: swordfish|root:|PATH=
# fetch: one*60
import time

time.sleep(0.05)
# %% cell
# tries: it again, beside a long answer
# expect: ok
# output: FETCHED \d+ files
# forbid: swordfish|root:|PATH=
# fetch: one*60
print("x" * (3 << 19))
