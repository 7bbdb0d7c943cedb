# mypy: ignore-errors
# group: others
# tries: how long others wait for memory, disk and cores
# breach: it can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
PATHS = (
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/proc/pressure/irq",
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
