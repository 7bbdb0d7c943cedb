# mypy: ignore-errors
# when: after
# bits: 1
# through: fadvise64 read pread64 mmap
# tries: to drop a library's pages from the cache, which the next reader notices
import os
import shutil
import sqlite3

fd = os.open(os.path.realpath(shutil.__file__), os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
# %% receiver
import os
import shutil
import time

fd = os.open(os.path.realpath(shutil.__file__), os.O_RDONLY)
os.pread(os.open(os.path.realpath(os.__file__), os.O_RDONLY), 4096, 4096 * 3)
start = time.perf_counter()
os.pread(fd, 4096, 4096 * 3)
say(1 if time.perf_counter() - start > 1e-4 else 0)
