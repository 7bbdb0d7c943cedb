# mypy: ignore-errors
# group: files
# mode: session
# tries: to exchange a display and a link while displays are fetched
# breach: the answer has the caller's file
# expect: ok
# output: started
# held-by: seccomp; the supervisor looks at the file that it has opened, not at a name
# limits: files=400 wall_s=20
import ctypes
import os
import threading

libc = ctypes.CDLL(None)
os.mkdir(".display")
for number in range(32):
    with open(f".display/{number}", "w") as file:
        file.write("text/html\n" + "A" * 4096)
    try:
        os.symlink("/proc/self/environ", f"link{number}")
    except PermissionError:
        os.mkdir(f"link{number}")


def swap() -> None:
    while True:
        for number in range(1, 32):
            libc.syscall(316, -100, b".display/%d" % number, -100, b"link%d" % number, 2)


threading.Thread(target=swap, daemon=True).start()
print("started")
# %% cell
# tries: it, twice
# expect: ok
# output: , \d+ displays
# forbid: swordfish|PATH=
# displays: yes
# %% cell
# expect: ok
# output: , \d+ displays
# forbid: swordfish|PATH=
# displays: yes
print("x" * (3 << 19))
