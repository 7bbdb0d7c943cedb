# group: secrets
# tries: other processes' root, working directory and open files as a way round path rules
# breach: something is opened
# expect: ok
# output: HELD: \d+
# held-by: landlock, uid
# stdin: facts
import json
import os

facts = json.loads(input())
tried = 0
for pid in (os.getppid(), 1, *facts["pids"]):
    for place in (f"root{facts['bait_file']}", "cwd", "fd", "fd/0", "fd/3", "task", "ns/net"):
        tried += 1
        try:
            fd = os.open(f"/proc/{pid}/{place}", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        print(f"BREACH: {pid} {place}: {fd}")
print(f"HELD: {tried}")
