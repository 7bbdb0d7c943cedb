# mypy: ignore-errors
# group: ipc
# tries: the number of a socket, which the machine counts
# breach: it is told
# expect: ok
# output: HELD
# held-by: seccomp
import socket

end = socket.socket(fileno=3)
try:
    print("BREACH:", end.getsockopt(socket.SOL_SOCKET, 57, 64))
except OSError as error:
    print(f"HELD: {error!r}")
end.detach()
