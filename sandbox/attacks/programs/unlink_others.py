# group: files
# tries: to remove a file of the caller
# breach: the file is gone
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: seccomp, landlock, uid
# stdin: facts
# breaches-without: seccomp+landlock+uid
import json
import os

facts = json.loads(input())
try:
    os.unlink(facts["bait_spare"])
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: removed")
