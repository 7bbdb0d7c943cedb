# group: processes
# tries: posix_spawn, which clones with shared memory and executes
# breach: the spawned program ends with 0
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, landlock
# breaches-without: seccomp+landlock
import os

try:
    pid = os.posix_spawn("/bin/true", ["true"], {})
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: spawned" if os.waitpid(pid, 0)[1] == 0 else "HELD: PermissionError in the child")
