# group: files
# tries: to read a file of the caller through a symbolic link in its working directory
# breach: the text is read
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: landlock, seccomp
# stdin: facts
import json
import os

try:
    os.symlink(json.loads(input())["bait_file"], "link")
    with open("link") as file:
        print(f"BREACH: {file.read()}")
except OSError as error:
    print(f"HELD: {error!r}")
