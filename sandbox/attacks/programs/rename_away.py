# group: files
# tries: to move the caller's file
# breach: the file is gone
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: seccomp, landlock, uid
# stdin: facts
import json
import os

bait = json.loads(input())["bait_file"]
try:
    os.rename(bait, bait + "-rocstar-breach")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    os.rename(bait + "-rocstar-breach", bait)
    print("BREACH: moved")
