# group: network
# tries: rare families of sockets, whose code in the kernel few have read
# breach: one of them exists
# expect: ok
# output: HELD: \d+
# held-by: seccomp
import socket

tried = 0
for family in range(46):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        tried += 1
        try:
            made = socket.socket(family, kind)
        except PermissionError:
            continue
        except OSError as error:
            print(f"BREACH: the kernel looked at family {family}: {error!r}")
        else:
            print(f"BREACH: family {made.family}")
print(f"HELD: {tried}")
