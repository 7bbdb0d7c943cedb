# mypy: ignore-errors
# group: files
# tries: files that never had a name
# breach: more than 64 of them are held
# expect: ok
# output: HELD: \d+
# held-by: seccomp, the scratch directory's quota
import os

held = []
try:
    while len(held) < 200:
        held.append(os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600))
except OSError:
    pass
print(f"HELD: {len(held)}" if len(held) <= 64 else f"BREACH: {len(held)} files")
