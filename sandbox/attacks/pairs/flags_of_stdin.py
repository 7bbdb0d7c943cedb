# mypy: ignore-errors
# when: after
# bits: 2
# through: fcntl ioctl dup read lseek
# tries: the flags of the open file behind standard input
import fcntl
import os

fcntl.fcntl(0, fcntl.F_SETFL, (os.O_APPEND if SECRET & 1 else 0) | (os.O_NONBLOCK if SECRET & 2 else 0))
# %% receiver
import fcntl
import os

flags = fcntl.fcntl(0, fcntl.F_GETFL)
say((1 if flags & os.O_APPEND else 0) | (2 if flags & os.O_NONBLOCK else 0))
