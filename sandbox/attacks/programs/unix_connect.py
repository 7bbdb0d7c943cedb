# group: network
# tries: a Unix socket by its path, such as a container engine's
# breach: it is connected
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: seccomp
# stdin: facts
# breaches-without: seccomp
import json
import socket

path = json.loads(input())["unix_path"]
try:
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: connected")
