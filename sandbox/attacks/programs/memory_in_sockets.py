# group: memory
# tries: to keep kernel memory in grown socket buffers
# breach: a buffer grew
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp
# breaches-without: seccomp
import socket

left, right = socket.socketpair()
try:
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: {left.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)} bytes")
