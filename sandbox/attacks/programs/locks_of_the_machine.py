# mypy: ignore-errors
# group: ipc
# tries: which locks and queues the machine has
# breach: they can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
import glob

PATHS = (
    "/proc/locks",
    "/proc/sysvipc/*",
    "/proc/key-users",
)
seen = []
for path in (found for pattern in PATHS for found in glob.glob(pattern) or [pattern]):
    try:
        with open(path, "rb") as file:
            seen.append((path, file.read(40)))
    except OSError:
        continue
print(f"BREACH: {seen[:3]}" if seen else "HELD: locks_of_the_machine")
