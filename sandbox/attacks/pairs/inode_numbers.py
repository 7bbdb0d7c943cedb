# mypy: ignore-errors
# when: after
# baseline: yes
# bits: 5
# through: openat mkdirat stat fstat getdents64
# tries: how many files were made, by the numbers of their inodes
# open: everywhere
for place in range(1 + SECRET):
    open(str(place), "w").close()
# %% receiver
import os

with open("own", "w") as file:
    say(os.fstat(file.fileno()).st_ino)
