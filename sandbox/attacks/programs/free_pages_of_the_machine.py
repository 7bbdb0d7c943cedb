# mypy: ignore-errors
# group: others
# tries: how the free memory of the machine is cut
# breach: it can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
import glob

PATHS = (
    "/proc/buddyinfo",
    "/proc/pagetypeinfo",
    "/proc/zoneinfo",
    "/proc/slabinfo",
)
seen = []
for path in (found for pattern in PATHS for found in glob.glob(pattern) or [pattern]):
    try:
        with open(path, "rb") as file:
            seen.append((path, file.read(40)))
    except OSError:
        continue
print(f"BREACH: {seen[:3]}" if seen else "HELD: free_pages_of_the_machine")
