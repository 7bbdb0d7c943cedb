# group: files
# tries: to open a folder of the caller to everybody
# breach: the mode has changed
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: seccomp, uid
# stdin: facts
# breaches-without: seccomp+uid
import json
import os

try:
    os.chmod(json.loads(input())["bait_folder"], 0o777)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: mode changed")
