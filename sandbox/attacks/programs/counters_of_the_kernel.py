# mypy: ignore-errors
# group: others
# tries: the counters of the whole machine
# breach: they can be read
# expect: ok
# output: HELD: \d
# held-by: landlock; namespaces
# breaches-without: landlock+namespaces
PATHS = (
    "/proc/stat",
    "/proc/vmstat",
    "/proc/interrupts",
    "/proc/softirqs",
    "/proc/schedstat",
    "/proc/loadavg",
    "/proc/uptime",
)
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
