# mypy: ignore-errors
# group: ipc
# tries: how much memory a socket has, of what its user has
# breach: it is told
# expect: ok
# output: HELD
# held-by: seccomp
import socket

end = socket.socket(fileno=3)
try:
    print("BREACH:", end.getsockopt(socket.SOL_SOCKET, 55, 64))
except OSError as error:
    print(f"HELD: {error!r}")
end.detach()
