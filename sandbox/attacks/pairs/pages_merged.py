# mypy: ignore-errors
# when: after
# bits: 1
# through: madvise
# tries: pages that the kernel merges, or drops for all, whose first write or read takes longer
# %% receiver
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
own = ctypes.c_void_p(libc.mmap(None, 4096, 3, 0x22, -1, 0))
for advice in (12, 20, 21):  # MADV_MERGEABLE, MADV_COLD, MADV_PAGEOUT
    if libc.madvise(own, 4096, advice) == 0:
        print("BREACH: advice", advice)
