# mypy: ignore-errors
# group: others
# tries: how the free memory of the machine is cut
# breach: it can be read
# expect: ok
# output: HELD: \d
# held-by: landlock; namespaces
# breaches-without: landlock+namespaces
PATHS = (
    "/proc/buddyinfo",
    "/proc/pagetypeinfo",
    "/proc/zoneinfo",
    "/proc/slabinfo",
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
