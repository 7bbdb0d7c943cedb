# group: secrets
# tries: the command lines of other processes, which may hold tokens
# breach: one is read
# expect: ok
# output: HELD: \d+
# held-by: landlock
# stdin: facts
# breaches-without: landlock+namespaces
import json
import os

tried = 0
for pid in (1, os.getppid(), *json.loads(input())["pids"]):
    tried += 1
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            print(f"BREACH: {file.read()[:200]!r}")
    except OSError:
        continue
print(f"HELD: {tried}")
