# group: files
# tries: to open the other end of its own output through /proc
# breach: it is open for reading
# expect: ok
# output: HELD: (PermissionError|FileNotFoundError)
# held-by: landlock
# breaches-without: landlock
import os

try:
    fd = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: descriptor {fd}")
