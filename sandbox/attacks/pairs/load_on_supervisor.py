# mypy: ignore-errors
# when: live
# bits: 1
# slots: 0.001 0.005
# through: openat clock_gettime
# tries: how long the supervisor takes to answer, beside somebody who asks again and again
# open: everywhere
import os

os.close(os.open("own", os.O_RDWR | os.O_CREAT))
for slot, symbol in enumerate(SYMBOLS):
    at(slot)
    end = START + (slot + 1) * SLOT_S
    while symbol and _time.monotonic() < end:
        try:
            os.close(os.open("own", os.O_RDWR | os.O_CREAT))
        except OSError:
            pass
# %% receiver
import os
import time

clock = time.perf_counter
def ask():
    start = clock()
    try:
        os.close(os.open("own", os.O_RDWR | os.O_CREAT))
    except OSError:
        pass
    return clock() - start
levels = []
for slot in range(COUNT):
    at(slot + 0.1)
    end, taken = START + (slot + 0.9) * SLOT_S, []
    while not taken or time.monotonic() < end:
        taken.append(ask())
    levels.append(sorted(taken)[len(taken) // 2])
decide(levels)
