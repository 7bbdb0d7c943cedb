# group: files
# tries: to empty a file of the caller by its path
# breach: the file is empty
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: seccomp, landlock, uid
# stdin: facts
# breaches-without: seccomp+landlock+uid
import json
import os

try:
    os.truncate(json.loads(input())["bait_spare"], 0)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: emptied")
