# group: network
# tries: to listen for connections
# breach: it is bound
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, landlock
# breaches-without: seccomp+landlock
import socket

try:
    server = socket.create_server(("127.0.0.1", 0))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: port {server.getsockname()[1]}")
