# mypy: ignore-errors
# when: after
# bits: 1
# through: ioctl
# tries: whether standard input blocks
import fcntl
import struct

fcntl.ioctl(0, 0x5421, struct.pack("i", SECRET))
# %% receiver
import fcntl
import os

say(1 if fcntl.fcntl(0, fcntl.F_GETFL) & os.O_NONBLOCK else 0)
