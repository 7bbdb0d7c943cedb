# group: files
# tries: a hard link to a file of the caller, which has the rights of its new place
# breach: the link exists
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: landlock, seccomp
# stdin: facts
import json
import os

try:
    os.link(json.loads(input())["bait_file"], "link")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: linked")
