# mypy: ignore-errors
# group: others
# tries: how many files, inodes and names the whole machine has open
# breach: they can be read
# expect: ok
# output: HELD: \d
# held-by: landlock; namespaces
# breaches-without: landlock+namespaces
PATHS = (
    "/proc/sys/fs/file-nr",
    "/proc/sys/fs/inode-nr",
    "/proc/sys/fs/dentry-state",
    "/proc/sys/fs/aio-nr",
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
