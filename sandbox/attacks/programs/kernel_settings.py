# group: files
# tries: to open the kernel's settings for writing
# breach: one of them is open
# expect: ok
# output: HELD: (OSError|PermissionError|FileNotFoundError)
# held-by: seccomp, landlock, uid
import os

held = ""
for place in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/oom_score_adj"):
    try:
        fd = os.open(place, os.O_WRONLY)
    except OSError as error:
        held = f"HELD: {error!r}"
    else:
        print(f"BREACH: descriptor {fd}")
print(held)
