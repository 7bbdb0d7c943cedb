# group: ipc
# tries: a key in the kernel's keyring, which processes of one user share
# breach: add_key returns at all
# expect: denied
# output: trying
# held-by: seccomp
# breaches-without: seccomp
import ctypes
import os

PROCESS_KEYRING = -2
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
print("trying add_key")
key = libc.syscall(number, b"user", b"rocstar-breach", b"x", 1, PROCESS_KEYRING)
print(f"BREACH: key {key}, errno {ctypes.get_errno()}")
