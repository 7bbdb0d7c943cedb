# group: network
# tries: the newer family of addresses, which filters forget
# breach: a socket exists
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: seccomp, namespaces
import socket

try:
    made = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    made.bind(("::1", 0))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: bound")
