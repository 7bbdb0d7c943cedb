# group: files
# tries: to leave a file in the machine's /tmp, by its name and past the library that leads it elsewhere
# breach: the file exists
# expect: ok
# output: HELD: \[.*(OSError|PermissionError)
# held-by: seccomp, landlock
# breaches-without: seccomp+landlock
import contextlib
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
with contextlib.suppress(OSError), open("/tmp/rocstar-breach", "w") as file:  # in the program's own directory
    file.write("here")
outcomes = []
for path in (b"/tmp/rocstar-breach", b"/proc/self/root/tmp/rocstar-breach"):
    fd = libc.syscall(257, -100, path, os.O_CREAT | os.O_RDWR, 0o600)
    outcomes.append(OSError(ctypes.get_errno(), "openat") if fd < 0 else fd)
if opened := [fd for fd in outcomes if isinstance(fd, int)]:
    os.unlink("/./tmp/rocstar-breach")
    print("BREACH: written", opened)
else:
    print(f"HELD: {outcomes!r}")
