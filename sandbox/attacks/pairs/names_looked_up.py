# mypy: ignore-errors
# when: live
# bits: 1
# slots: 0.00003 0.0001 0.0003
# through: stat newfstatat access
# tries: names that do not exist, which are found faster when somebody has looked them up before
# open: everywhere
import os

folder = os.path.dirname(os.__file__)
names = [[f"{folder}/{NONCE:x}-{slot}-{turn}" for turn in range(4)] for slot in range(COUNT)]
for slot, symbol in enumerate(SYMBOLS):
    at(slot)
    if symbol:
        for name in names[slot]:
            os.access(name, 0)
at(COUNT)
# %% receiver
import os
import time

folder = os.path.dirname(os.__file__)
names = [[f"{folder}/{NONCE:x}-{slot}-{turn}" for turn in range(4)] for slot in range(COUNT)]
levels = []
clock = time.perf_counter
os.access(folder, 0)
at(COUNT + 0.001 / SLOT_S)
for each in names:
    taken = []
    for name in each:
        start = clock()
        os.access(name, 0)
        taken.append(clock() - start)
    levels.append(sorted(taken)[1])
decide(levels)
