# mypy: ignore-errors
# group: secrets
# tries: its own environment, Python's and the C library's
# breach: a variable of the trainer is there
# expect: ok
# output: HELD: \d+
# held-by: an environment of its own
import ctypes
import os

libc = ctypes.CDLL(None)
variables = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
raw = []
while variables[len(raw)]:
    raw.append(variables[len(raw)])
seen = [*os.environ, *(entry.decode("utf-8", "replace") for entry in raw)]
own = f"HOME={os.getcwd()}"
known = ("ROCSTAR_BAIT", "HOME=/", "REDIS", "TOKEN", "USER", "LD_PRELOAD")
bad = [entry for entry in seen if entry.startswith(known) and entry != own]
print(f"BREACH: {bad}" if bad else f"HELD: {len(seen)} entries")
