# group: others
# tries: to signal its parent
# breach: the signal is sent
# expect: ok
# output: HELD: (PermissionError|ProcessLookupError)
# held-by: seccomp, landlock, uid
# stdin: facts
# breaches-without: seccomp+landlock+uid+namespaces
import json
import os
import signal

held = ""
for pid in (os.getppid(), *json.loads(input())["pids"]):
    try:
        os.kill(pid, signal.SIGCONT)
    except OSError as error:
        held = f"HELD: {error!r}"
    else:
        print(f"BREACH: sent to {pid}")
print(held)
