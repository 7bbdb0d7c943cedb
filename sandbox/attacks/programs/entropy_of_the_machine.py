# mypy: ignore-errors
# group: others
# tries: how much entropy is left, and the name of this start
# breach: it can be read
# expect: ok
# output: HELD: \d
# held-by: landlock; namespaces
# breaches-without: landlock+namespaces
PATHS = (
    "/proc/sys/kernel/random/entropy_avail",
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/kernel/random/uuid",
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
