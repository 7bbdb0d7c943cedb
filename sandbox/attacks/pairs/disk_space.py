# mypy: ignore-errors
# when: live
# bits: 8
# through: write pwrite64 writev pwritev ftruncate truncate fallocate copy_file_range sendfile statfs fstatfs
# tries: how much of the scratch file system is free
import time

with open("fill", "wb", buffering=0) as file:
    file.write(b"x" * (4096 * (1 + SECRET)))
    time.sleep(HOLD_S)
# %% receiver
import os
import time


def used():
    room = os.statvfs(".")
    return room.f_blocks - room.f_bfree
deadline = time.monotonic() + HOLD_S
while time.monotonic() < deadline:
    if (now := used()) > 0 and used() == now:
        say(now - 1)
        break
