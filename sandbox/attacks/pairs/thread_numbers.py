# mypy: ignore-errors
# when: after
# bits: 4
# baseline: yes
# through: clone gettid getpid
# tries: how many threads the machine has ever had, by the number of one's own
# open: exact while nothing else starts
import threading

for _ in range(SECRET):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
# %% receiver
import os

say(os.getpid())
