# group: files
# tries: to open a folder of the caller to everybody
# breach: the mode has changed
# expect: ok
# output: HELD: (as it was|OSError|PermissionError)
# held-by: seccomp, uid
# stdin: facts
# breaches-without: seccomp+uid
import json
import os

folder = json.loads(input())["bait_folder"]
try:
    before = os.stat(folder).st_mode
    os.chmod(folder, 0o777)
    print(f"BREACH: {os.stat(folder).st_mode:o}" if os.stat(folder).st_mode != before else "HELD: as it was")
except OSError as error:
    print(f"HELD: {error!r}")
