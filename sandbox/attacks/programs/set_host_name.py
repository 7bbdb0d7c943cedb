# group: syscalls
# tries: to rename the machine
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp, namespaces
import socket

print("trying sethostname")
try:
    socket.sethostname(socket.gethostname())
except OSError as error:
    print(f"BREACH: it answered, {error!r}")
else:
    print("BREACH: renamed")
