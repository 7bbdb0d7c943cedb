# group: network
# tries: to look up a name, by which data can leave
# breach: an address comes back
# expect: ok
# output: HELD: (gaierror|PermissionError|OSError)
# held-by: seccomp, landlock
import socket

try:
    found = socket.getaddrinfo("rocstar-breach.example.com", 80)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: {found}")
