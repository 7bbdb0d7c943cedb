# mypy: ignore-errors
# when: live
# bits: 5
# through: stat newfstatat nanosleep
# tries: when another call ended, by the times of the folder of all scratch directories
# open: where nothing else ends meanwhile
import os
import time

open("own", "w").close()  # a directory that was used is removed
now = time.monotonic()
time.sleep(0.3 - now % 0.3 + 0.3 + (SECRET + 0.4) * 0.009)
os._exit(0)
# %% receiver
import os
import time

seen, end = set(), time.monotonic() + 1.2
skew = time.time() - time.monotonic()
while time.monotonic() < end:
    seen.add(os.stat("..").st_mtime)
    time.sleep(0.0005)
last = max(seen) - skew
say(int(last % 0.3 / 0.009))
