# mypy: ignore-errors
# group: others
# tries: the counters of the whole machine
# breach: they can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
import glob

PATHS = (
    "/proc/stat",
    "/proc/vmstat",
    "/proc/interrupts",
    "/proc/softirqs",
    "/proc/schedstat",
    "/proc/loadavg",
    "/proc/uptime",
)
seen = []
for path in (found for pattern in PATHS for found in glob.glob(pattern) or [pattern]):
    try:
        with open(path, "rb") as file:
            seen.append((path, file.read(40)))
    except OSError:
        continue
print(f"BREACH: {seen[:3]}" if seen else "HELD: counters_of_the_kernel")
