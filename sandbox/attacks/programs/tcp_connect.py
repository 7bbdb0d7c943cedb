# group: network
# tries: to connect to a server on this machine
# breach: it is connected
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, landlock, namespaces
# stdin: facts
# breaches-without: seccomp+landlock+namespaces
import json
import socket

port = json.loads(input())["tcp_port"]
try:
    connection = socket.create_connection(("127.0.0.1", port), timeout=1)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: {connection.getpeername()}")
