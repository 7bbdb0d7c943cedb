# group: persistence
# tries: to hold a descriptor of its working directory in the next call, by a path that is used again
# breach: none; the first call only says where it was and makes a file there
# expect: ok
# output: at
# held-by: a scratch directory per call
import os

try:
    os.mkdir("inner")
except OSError:
    pass
print("at", os.getcwd())
# %% call
# tries: to find the folder of the first call above and around its own
# expect: ok
# output: HELD
import os

roots = (".", "..", "../..", "/tmp", os.environ.get("TMPDIR", "/tmp"))
places = [os.path.join(root, "inner") for root in roots]
found = [place for place in places if os.path.isdir(place)]
print(f"BREACH: {found}" if found else "HELD")
