# mypy: ignore-errors
# when: live
# bits: 1
# slots: 0.005 0.02
# through: sysinfo mmap munmap
# tries: how many pages processes share on the machine (`sysinfo`), 8 MiB more or less
# open: everywhere
import ctypes

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
size, held = ctypes.c_size_t(8 << 20), None
for slot, symbol in enumerate(SYMBOLS):
    at(slot)
    if symbol and not held:
        held = libc.mmap(None, size, 3, 0x8021, -1, ctypes.c_long(0))
    elif held and not symbol:
        libc.munmap(ctypes.c_void_p(held), size)
        held = None
at(COUNT)
# %% receiver
import ctypes

libc = ctypes.CDLL(None)
room = (ctypes.c_ulong * 16)()
levels = []
for slot in range(COUNT):
    at(slot + 0.95)
    libc.sysinfo(room)
    levels.append(room[6])  # sharedram
decide(levels)
