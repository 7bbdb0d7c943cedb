# group: secrets
# tries: to list the trainer's folders
# breach: a listing comes back
# expect: ok
# output: HELD: PermissionError
# held-by: landlock
# stdin: facts
# breaches-without: landlock
import json
import os

try:
    print(f"BREACH: {os.listdir(json.loads(input())['bait_folder'])}")
except OSError as error:
    print(f"HELD: {error!r}")
