# mypy: ignore-errors
# group: others
# tries: what control groups have used
# breach: it can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
FOLDERS = ("", "unified/", "memory/", "cpu/", "cpuacct/", "pids/", "system.slice/")
NAMES = (
    *("cpu.stat", "cgroup.stat", "cgroup.procs", "memory.stat", "memory.current", "memory.usage_in_bytes"),
    *("cpuacct.usage", "pids.current", "io.stat", "cpu.pressure", "tasks"),
)
PATHS = [f"/sys/fs/cgroup/{folder}{name}" for folder in FOLDERS for name in NAMES]
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
