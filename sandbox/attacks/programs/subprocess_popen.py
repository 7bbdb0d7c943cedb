# group: processes
# tries: subprocess with a new session, as daemons start
# breach: the process ends with 0
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, landlock
# breaches-without: seccomp+landlock
import subprocess

try:
    done = subprocess.run(["/bin/true"], start_new_session=True, timeout=2)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: ran" if done.returncode == 0 else f"returned {done.returncode}")
