# mypy: ignore-errors
# when: live
# bits: 1
# slots: 0.005 0.02
# through: mmap clock_gettime
# tries: how fast one's own memory is beside somebody who uses much of it, or as busily none
# open: everywhere
import ctypes

libc = ctypes.CDLL(None)
size = 32 << 20
one, other = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
step = 1 << 20
place = 0
for slot, symbol in enumerate(SYMBOLS):
    at(slot)
    end = START + (slot + 1) * SLOT_S
    while _time.monotonic() < end:
        if symbol:
            libc.memcpy(ctypes.byref(other, place), ctypes.byref(one, place), step)
            place = (place + step) % size
# %% receiver
import ctypes
import time

libc = ctypes.CDLL(None)
size = 8 << 20
one, other = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
clock = time.perf_counter
levels = []
for slot in range(COUNT):
    at(slot + 0.1)
    end, taken = START + (slot + 0.9) * SLOT_S, []
    while not taken or time.monotonic() < end:
        start = clock()
        for place in range(0, size, 1 << 20):
            libc.memcpy(ctypes.byref(other, place), ctypes.byref(one, place), 1 << 18)
        taken.append(clock() - start)
    levels.append(sorted(taken)[len(taken) // 4])
decide(levels)
