# group: secrets
# tries: a file of the trainer that every user may read
# breach: its text is read
# expect: ok
# output: HELD: PermissionError
# held-by: landlock
# stdin: facts
# breaches-without: landlock
import json

try:
    with open(json.loads(input())["bait_file"]) as file:
        print(f"BREACH: {file.read()}")
except OSError as error:
    print(f"HELD: {error!r}")
