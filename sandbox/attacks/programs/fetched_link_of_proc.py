# group: files
# tries: links to the environment, memory and root of the process that reads them, which is the supervisor
# breach: the answer has the supervisor's environment
# expect: ok
# output: FETCHED 0 files
# forbid: swordfish|PATH=
# held-by: seccomp; the supervisor opens no link (openat2)
# fetch: environ thread parent mem root/etc/passwd cwd/secret fd/0 exe
import contextlib
import os

targets = {name: f"/proc/self/{name}" for name in ("environ", "mem", "root", "cwd", "fd", "exe")}
targets |= {"thread": "/proc/thread-self/environ", "parent": f"/proc/{os.getppid()}/environ"}
made = 0
for name, target in targets.items():
    with contextlib.suppress(PermissionError):
        os.symlink(target, name)
        made += 1
print(f"HELD: {made} links")
