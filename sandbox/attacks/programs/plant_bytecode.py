# group: files
# tries: to plant a cached bytecode file next to a library
# breach: the file exists
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: seccomp, landlock, uid
import json
import os

place = os.path.join(os.path.dirname(os.path.realpath(json.__file__)), "__pycache__", "rocstar-breach.pyc")
try:
    fd = os.open(place, os.O_CREAT | os.O_WRONLY)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    os.unlink(place)
    print(f"BREACH: descriptor {fd}")
