# mypy: ignore-errors
# group: ipc
# tries: on which core the supervisor last wrote
# breach: it is told
# expect: ok
# output: HELD
# held-by: seccomp
import socket

end = socket.socket(fileno=3)
try:
    print("BREACH:", end.getsockopt(socket.SOL_SOCKET, 49, 64))
except OSError as error:
    print(f"HELD: {error!r}")
end.detach()
