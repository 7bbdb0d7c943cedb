# group: secrets
# tries: the environments of its parents and of every process it can see
# breach: the trainer's variable is read
# expect: ok
# output: HELD: \d+
# held-by: landlock, uid, nnp
# stdin: facts
# breaches-without: landlock+uid+namespaces when ordinary
import json
import os

pids = [os.getppid(), *json.loads(input())["pids"], 1]
try:
    pids += [int(name) for name in os.listdir("/proc") if name.isdigit()]
except OSError:
    pass
tried = 0
for pid in dict.fromkeys(pids):
    tried += 1
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read()
    except OSError:
        continue
    if b"ROCSTAR_BAIT=" in text:
        print(f"BREACH: {text[:2000]!r}")
        break
print(f"HELD: {tried}")
