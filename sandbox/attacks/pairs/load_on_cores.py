# mypy: ignore-errors
# when: live
# bits: 1
# slots: 0.01 0.03
# through: sched_yield getcpu clock_gettime
# tries: how much of a core one gets beside somebody who keeps all of them busy
# open: everywhere
import hashlib
import os
import threading

block = bytes(1 << 16)
def work():
    for slot, symbol in enumerate(SYMBOLS):
        at(slot)
        end = START + (slot + 1) * SLOT_S - 0.0005
        while symbol and _time.monotonic() < end:
            hashlib.sha256(block)  # without the interpreter's lock
threads = [threading.Thread(target=work) for _ in range(min(48, len(os.sched_getaffinity(0))))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
# %% receiver
import time

levels = []
for slot in range(COUNT):
    at(slot)
    start, used, end = time.monotonic(), time.thread_time(), START + (slot + 1) * SLOT_S
    while time.monotonic() < end:
        pass
    levels.append((time.thread_time() - used) / max(1e-6, time.monotonic() - start))
decide(levels)
