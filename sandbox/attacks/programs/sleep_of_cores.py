# mypy: ignore-errors
# group: others
# tries: how often each core slept, and how fast it runs
# breach: it can be read
# expect: ok
# output: HELD: [1-9]
# held-by: landlock; namespaces
# breaches-without: landlock
NAMES = (
    *("cpuidle/state0/usage", "cpuidle/state1/time", "cpufreq/scaling_cur_freq", "topology/core_id"),
    *("acpi_cppc/feedback_ctrs", "thermal_throttle/core_throttle_count"),
)
PATHS = [f"/sys/devices/system/cpu/cpu{core}/{name}" for core in range(8) for name in NAMES]
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
