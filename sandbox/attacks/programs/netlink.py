# group: network
# tries: to list the machine's network interfaces and routes from the kernel
# breach: the socket exists
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp
# breaches-without: seccomp
import socket

try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: a netlink socket")
