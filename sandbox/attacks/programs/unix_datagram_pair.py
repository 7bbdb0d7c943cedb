# group: network
# tries: a pair of datagram sockets, one of which can then send to any path
# breach: the datagram is sent
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: seccomp
# stdin: facts
# breaches-without: seccomp
import json
import socket

path = json.loads(input())["unix_datagram_path"]
try:
    left, _ = socket.socketpair(type=socket.SOCK_DGRAM)
    left.connect(path)
    left.send(b"rocstar-breach")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: sent")
