# mypy: ignore-errors
# group: network
# tries: which sockets the machine has
# breach: they can be read
# expect: ok
# output: HELD: \d
# held-by: landlock; namespaces
# breaches-without: landlock+namespaces
PATHS = (
    "/proc/net/unix",
    "/proc/net/tcp",
    "/proc/net/sockstat",
    "/proc/net/dev",
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
