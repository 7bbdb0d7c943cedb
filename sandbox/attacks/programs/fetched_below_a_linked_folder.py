# group: files
# tries: to have the caller fetch a file of its own, by a name below a link to the caller's folder
# breach: the answer has the file
# expect: ok
# output: FETCHED 0 files
# forbid: swordfish
# held-by: seccomp; the supervisor leaves the directory by no link (openat2)
# stdin: facts
# fetch: door/secret inner/door/secret door/home/.ssh/id_rsa
import contextlib
import json
import os

folder = json.loads(input())["bait_folder"]
os.mkdir("inner")
made = 0
for name in ("door", "inner/door"):
    with contextlib.suppress(PermissionError):
        os.symlink(folder, name)
        made += 1
print(f"HELD: {made} links")
