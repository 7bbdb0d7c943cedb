# group: network
# tries: a raw packet socket, to see the traffic of others
# breach: it exists
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, nnp
import socket

try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: a packet socket")
