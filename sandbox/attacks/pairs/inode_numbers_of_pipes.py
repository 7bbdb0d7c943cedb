# mypy: ignore-errors
# when: after
# bits: 4
# baseline: yes
# through: pipe2 newfstatat fstat
# tries: how many pipes a core has ever made, by the number of a new one
# open: exact on the same core, while nothing else makes pipes or sockets there
import os

for _ in range(SECRET):
    for end in os.pipe():
        os.close(end)
# %% receiver
import os

say(os.fstat(os.pipe()[0]).st_ino)
