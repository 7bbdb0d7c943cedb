# group: files
# tries: to write through a symbolic link that leads out of its working directory
# breach: the target exists
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: landlock, seccomp
import os

try:
    os.symlink("/tmp/rocstar-breach", "link")
    with open("link", "w") as file:
        file.write("x")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    os.unlink("/tmp/rocstar-breach")
    print("BREACH: written through a link")
