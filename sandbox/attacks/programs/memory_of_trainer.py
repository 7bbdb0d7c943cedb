# group: secrets
# tries: the memory of its parents through /proc
# breach: one file is open
# expect: ok
# output: HELD: \d+
# held-by: landlock, uid, nnp
# stdin: facts
import json
import os

tried = 0
for pid in (os.getppid(), *json.loads(input())["pids"]):
    for name in ("mem", "maps", "pagemap", "auxv"):
        tried += 1
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                if file.read(16):
                    print(f"BREACH: {pid} {name}")
        except OSError:
            continue
print(f"HELD: {tried}")
