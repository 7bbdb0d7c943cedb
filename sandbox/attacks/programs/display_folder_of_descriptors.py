# group: files
# tries: a folder of displays that is a link to the descriptors of the supervisor, whose names are numbers
# breach: the answer has what one of them leads to
# expect: ok
# output: FETCHED 0 files, 0 bytes, of b'', 0 displays
# held-by: seccomp; the supervisor leaves the directory by no link (openat2)
# displays: yes
import contextlib
import os

with contextlib.suppress(PermissionError):
    os.symlink("/proc/self/fd", ".display")
print("HELD")
# %% call
# expect: ok
# output: FETCHED 0 files, 0 bytes, of b'', 0 displays
# displays: yes
import contextlib
import os

os.mkdir("outer")
with contextlib.suppress(PermissionError):
    os.symlink("/dev/fd", "outer/.display")
    os.symlink("outer/.display", ".display")
print("HELD")
