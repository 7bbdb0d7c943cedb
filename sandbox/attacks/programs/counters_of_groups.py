# mypy: ignore-errors
# group: others
# tries: what control groups have used
# breach: it can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
import glob

PATHS = (
    "/sys/fs/cgroup/*",
    "/sys/fs/cgroup/*/cpu.stat",
    "/sys/fs/cgroup/*/memory.current",
)
seen = []
for path in (found for pattern in PATHS for found in glob.glob(pattern) or [pattern]):
    try:
        with open(path, "rb") as file:
            seen.append((path, file.read(40)))
    except OSError:
        continue
print(f"BREACH: {seen[:3]}" if seen else "HELD: counters_of_groups")
