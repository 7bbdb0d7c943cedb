# group: output
# tries: to send descriptors through the control channel, until the supervisor has none left
# breach: it is sent
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: seccomp
import array
import socket

try:
    control = socket.socket(fileno=3, family=socket.AF_UNIX, type=socket.SOCK_STREAM)
    control.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 100))])
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: sent")
