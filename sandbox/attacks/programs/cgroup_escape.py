# group: files
# tries: to leave its control group by writing to the group's files
# breach: one of them is open for writing
# expect: ok
# output: HELD: (OSError|PermissionError|FileNotFoundError)
# held-by: seccomp, landlock, uid
import os

held = ""
for name in ("cgroup.procs", "memory/tasks", "unified/cgroup.procs"):
    try:
        fd = os.open(f"/sys/fs/cgroup/{name}", os.O_WRONLY)
    except OSError as error:
        held = f"HELD: {error!r}"
    else:
        print(f"BREACH: descriptor {fd}")
print(held)
