# group: secrets
# tries: its own memory map, which tells where everything of the fork server lies
# breach: it is read
# expect: ok
# output: HELD: \d+
# held-by: landlock
# breaches-without: landlock+namespaces
tried = 0
for name in ("maps", "smaps", "auxv", "stat", "status", "mountinfo", "limits"):
    tried += 1
    try:
        with open(f"/proc/self/{name}", "rb") as file:
            print(f"BREACH: {name}: {file.read(40)!r}")
    except OSError:
        continue
print(f"HELD: {tried}")
