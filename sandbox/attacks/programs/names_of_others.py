# mypy: ignore-errors
# group: secrets
# tries: names, states and waiting places of other processes
# breach: they can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
import glob

PATHS = (
    "/proc/1/comm",
    "/proc/1/stat",
    "/proc/1/status",
    "/proc/1/wchan",
    "/proc/[0-9]*/sched",
)
seen = []
for path in (found for pattern in PATHS for found in glob.glob(pattern) or [pattern]):
    try:
        with open(path, "rb") as file:
            seen.append((path, file.read(40)))
    except OSError:
        continue
print(f"BREACH: {seen[:3]}" if seen else "HELD: names_of_others")
