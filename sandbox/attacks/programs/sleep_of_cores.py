# mypy: ignore-errors
# group: others
# tries: how often each core slept, and how fast it runs
# breach: it can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
import glob

PATHS = (
    "/sys/devices/system/cpu/cpu[0-9]*/cpuidle/state*/usage",
    "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq",
)
seen = []
for path in (found for pattern in PATHS for found in glob.glob(pattern) or [pattern]):
    try:
        with open(path, "rb") as file:
            seen.append((path, file.read(40)))
    except OSError:
        continue
print(f"BREACH: {seen[:3]}" if seen else "HELD: sleep_of_cores")
