# group: processes
# tries: a command through the C library's system()
# breach: the shell's output appears
# expect: ok
# output: HELD: -?[1-9]
# held-by: seccomp, landlock
# breaches-without: seccomp+landlock
import os

status = os.system("echo BREACH: a shell")
print(f"HELD: {status}" if status != 0 else "system() returned 0")
