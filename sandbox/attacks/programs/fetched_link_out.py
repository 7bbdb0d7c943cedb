# group: files
# tries: to have the caller fetch a file of its own, through links of the names that are fetched
# breach: the answer has the file
# expect: ok
# output: FETCHED 0 files
# forbid: swordfish
# held-by: seccomp; the supervisor opens no link (openat2)
# stdin: facts
# fetch: out folder/out climbs
import contextlib
import json
import os

facts = json.loads(input())
os.mkdir("folder")
made = 0
for target, name in (
    (facts["bait_file"], "out"),
    (facts["bait_file"], "folder/out"),
    ("../" * 20 + facts["bait_file"], "climbs"),
):
    with contextlib.suppress(PermissionError):
        os.symlink(target, name)
        made += 1
print(f"HELD: {made} links")
