# group: files
# tries: to display a caller's file, by a link in the place of a display
# breach: the answer has the file
# expect: ok
# output: FETCHED 0 files, 0 bytes, of b'', 0 displays
# forbid: swordfish
# held-by: seccomp; the supervisor opens no link (openat2)
# stdin: facts
# displays: yes
import contextlib
import json
import os

facts = json.loads(input())
os.mkdir(".display")
for number, target in enumerate((facts["bait_file"], "/proc/self/environ", "/etc/passwd")):
    with contextlib.suppress(PermissionError):
        os.symlink(target, f".display/{number}")
print("HELD")
