# mypy: ignore-errors
# when: live
# bits: 1
# slots: 0.001 0.003 0.01
# through: mmap munmap
# tries: how much memory anybody has asked for (Committed_AS of /proc/meminfo): 1 GiB more or less
import ctypes

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
held, size = None, 0
for slot, symbol in enumerate(SYMBOLS):
    at(slot)
    if size:
        libc.munmap(ctypes.c_void_p(held), ctypes.c_size_t(size))
    size = symbol << 30
    if size:
        held = libc.mmap(None, ctypes.c_size_t(size), 3, 0x22, -1, ctypes.c_long(0))
at(COUNT)
# %% receiver
import os

fd = os.open("/proc/meminfo", os.O_RDONLY)
def promised():
    text = os.pread(fd, 4096, 0)
    start = text.index(b"Committed_AS:") + 13
    return int(text[start:text.index(b"kB", start)])
levels = []
for slot in range(COUNT):
    at(slot + 0.6)
    levels.append(promised())
decide(levels)
