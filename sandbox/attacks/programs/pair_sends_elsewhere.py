# group: network
# tries: to send with an address from the stream pair that programs may have
# breach: the call with an address is accepted
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: seccomp
# stdin: facts
import json
import socket

path = json.loads(input())["unix_datagram_path"]
left, _ = socket.socketpair()
try:
    left.sendto(b"rocstar-breach", path)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: sent")
