# mypy: ignore-errors
# group: others
# tries: how long others wait for memory, disk and cores
# breach: it can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
import glob

PATHS = (
    "/proc/pressure/*",
)
seen = []
for path in (found for pattern in PATHS for found in glob.glob(pattern) or [pattern]):
    try:
        with open(path, "rb") as file:
            seen.append((path, file.read(40)))
    except OSError:
        continue
print(f"BREACH: {seen[:3]}" if seen else "HELD: pressure_of_the_machine")
