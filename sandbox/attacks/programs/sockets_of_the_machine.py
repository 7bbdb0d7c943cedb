# mypy: ignore-errors
# group: network
# tries: which sockets the machine has
# breach: they can be read
# expect: ok
# output: HELD
# held-by: landlock; namespaces
import glob

PATHS = (
    "/proc/net/unix",
    "/proc/net/tcp",
    "/proc/net/sockstat",
    "/proc/net/dev",
)
seen = []
for path in (found for pattern in PATHS for found in glob.glob(pattern) or [pattern]):
    try:
        with open(path, "rb") as file:
            seen.append((path, file.read(40)))
    except OSError:
        continue
print(f"BREACH: {seen[:3]}" if seen else "HELD: sockets_of_the_machine")
