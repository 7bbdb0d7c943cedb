# mypy: ignore-errors
# when: live
# bits: 1
# slots: 0.0003 0.001
# through: mmap madvise getrusage
# tries: pages of a library's file that nobody has read yet, which are in the cache once somebody has
# cold: yes
# open: once for each page of a file that is not in the cache
import mmap
import os
import sys

with open(COLD, "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
for slot, symbol in enumerate(SYMBOLS):
    at(slot)
    if symbol:
        pages[slot * 65536 % len(pages)]
at(COUNT)
# %% receiver
import mmap
import resource

with open(COLD, "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
levels = []
for slot in range(COUNT):
    at(slot + 0.8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    pages[slot * 65536 % len(pages)]
    levels.append(before - resource.getrusage(resource.RUSAGE_SELF).ru_majflt)
tell([int(level == 0) for level in levels])
