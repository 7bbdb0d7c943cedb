# group: network
# tries: a Unix socket by an abstract name, which no file rights protect
# breach: it is connected
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: seccomp, landlock, namespaces
# stdin: facts
# breaches-without: seccomp+landlock+namespaces
import json
import socket

name = "\0" + json.loads(input())["unix_name"]
try:
    client = socket.socket(socket.AF_UNIX)
    client.connect(name)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: connected")
