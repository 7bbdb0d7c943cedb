# group: files
# tries: to leave a file in /tmp
# breach: the file exists
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: seccomp, landlock
# breaches-without: seccomp+landlock
import os

try:
    with open("/tmp/rocstar-breach", "w") as file:
        file.write("here")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    os.unlink("/tmp/rocstar-breach")
    print("BREACH: written")
