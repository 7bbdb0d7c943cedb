# mypy: ignore-errors
# group: files
# tries: to be led out of its directory by the names of places that lie in there
# breach: something else is read or written
# expect: ok
# output: HELD
# held-by: landlock
import os

found = []
up = "../../../.."
names = (f"/tmp/{up}/etc/shadow", f"/mnt/data/{up}/etc/shadow", "/dev/fd/../../etc/shadow", "/dev/fd/3/../x")
for name in names:
    for mode in ("rb", "ab"):
        try:
            with open(name, mode) as file:
                found.append((name, mode, file.fileno()))
        except OSError:
            pass
for folder in ("/tmp/..", "/mnt/data/.."):
    try:
        found.append((folder, os.listdir(folder)))
    except OSError:
        pass
seen = [one for one in found if one[0] != "/tmp/.." or set(one[1]) - {".tmp"}]
print(f"BREACH: {seen}" if seen else "HELD")
