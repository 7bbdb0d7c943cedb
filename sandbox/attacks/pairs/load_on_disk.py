# mypy: ignore-errors
# when: live
# bits: 1
# slots: 0.01 0.03
# without: namespaces
# through: write fsync fdatasync clock_gettime
# tries: how long one's own file takes to the disk beside somebody who writes there
# open: where scratch directories lie on a disk
import os

fd = os.open("own", os.O_RDWR | os.O_CREAT)
block = os.urandom(1 << 18)
for slot, symbol in enumerate(SYMBOLS):
    at(slot)
    end = START + (slot + 1) * SLOT_S
    while symbol and _time.monotonic() < end:
        os.pwrite(fd, block, 0)
        os.fsync(fd)
# %% receiver
import os
import time

fd = os.open("own", os.O_RDWR | os.O_CREAT)
clock = time.perf_counter
levels = []
for slot in range(COUNT):
    at(slot + 0.1)
    end, taken = START + (slot + 0.9) * SLOT_S, []
    while not taken or time.monotonic() < end:
        start = clock()
        os.pwrite(fd, b"x", 0)
        os.fdatasync(fd)
        taken.append(clock() - start)
    levels.append(sum(taken) / len(taken))
decide(levels)
