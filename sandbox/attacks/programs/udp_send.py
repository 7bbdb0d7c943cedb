# group: network
# tries: to send a datagram, which needs no connection
# breach: it is sent
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, namespaces
# stdin: facts
# breaches-without: seccomp+namespaces
import json
import socket

port = json.loads(input())["udp_port"]
try:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.sendto(b"rocstar-breach", ("127.0.0.1", port))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: sent")
