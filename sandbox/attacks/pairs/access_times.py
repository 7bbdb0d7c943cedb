# mypy: ignore-errors
# when: after
# through: openat read stat newfstatat
# tries: which library files were read, by their access times, each once a day
# without: namespaces
# open: where mounts are not read-only (tier A)
import itertools
import os
import sysconfig
import time

top = sysconfig.get_path("purelib")
walk = os.walk(top)
paths = (os.path.join(folder, name) for folder, folders, files in walk for name in folders.sort() or files)
names = sorted(itertools.islice(paths, 4000))
for bit in range(24):
    for name in names[bit::24] if FRAME >> bit & 1 else ():
        info = os.stat(name)
        if info.st_atime <= max(info.st_mtime, info.st_ctime) or time.time() - info.st_atime > 86400:
            with open(name, "rb") as file:
                file.read(1)
            break
# %% receiver
import itertools
import os
import sysconfig

top = sysconfig.get_path("purelib")
walk = os.walk(top)
paths = (os.path.join(folder, name) for folder, folders, files in walk for name in folders.sort() or files)
names = sorted(itertools.islice(paths, 4000))
times = [max(os.stat(name).st_atime for name in names[bit::24]) for bit in range(24)]
frame = sum(1 << bit for bit in range(24) if times[bit] > max(times) - 0.02)
if (frame >> 8) * 31 + 7 & 255 == frame & 255:
    say(frame >> 8)
