# mypy: ignore-errors
# when: after
# bits: 1
# through: getsockopt
# tries: a handle or the number of a process, by which it can be asked for
# %% receiver
import os
import socket
import struct

held = socket.socket(fileno=os.dup(3))
for option in (17, 77, 59, 31):  # SO_PEERCRED, SO_PEERPIDFD, SO_PEERGROUPS, SO_PEERSEC
    try:
        held.getsockopt(socket.SOL_SOCKET, option, 12)
    except OSError:
        continue
    print("BREACH: option", option)
