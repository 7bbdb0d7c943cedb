# mypy: ignore-errors
# group: secrets
# tries: names, states and waiting places of other processes
# breach: they can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
import os

NUMBERS = (1, os.getppid(), *(os.getpid() - back for back in range(1, 9)))
NAMES = ("comm", "stat", "status", "wchan", "sched", "schedstat", "io", "statm")
PATHS = [f"/proc/{number}/{name}" for number in NUMBERS for name in NAMES]
seen, refused = [], 0
for path in PATHS:
    try:
        with open(path, "rb") as file:
            seen.append((path, file.read(40)))
    except PermissionError:
        refused += 1
    except OSError:
        continue
print(f"BREACH: {seen[:3]}" if seen else f"HELD: {refused} refused")
