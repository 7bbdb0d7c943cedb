# mypy: ignore-errors
# group: others
# tries: how much entropy is left, and the name of this start
# breach: it can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
import glob

PATHS = (
    "/proc/sys/kernel/random/entropy_avail",
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/kernel/random/uuid",
)
seen = []
for path in (found for pattern in PATHS for found in glob.glob(pattern) or [pattern]):
    try:
        with open(path, "rb") as file:
            seen.append((path, file.read(40)))
    except OSError:
        continue
print(f"BREACH: {seen[:3]}" if seen else "HELD: entropy_of_the_machine")
