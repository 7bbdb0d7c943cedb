# mypy: ignore-errors
# group: ipc
# tries: which locks and queues the machine has
# breach: they can be read
# expect: ok
# output: HELD: \d
# held-by: landlock; namespaces
# breaches-without: landlock+namespaces
PATHS = (
    "/proc/locks",
    "/proc/sysvipc/shm",
    "/proc/sysvipc/sem",
    "/proc/sysvipc/msg",
    "/proc/key-users",
    "/proc/keys",
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
