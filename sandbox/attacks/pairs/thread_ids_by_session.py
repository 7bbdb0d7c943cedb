# mypy: ignore-errors
# when: live
# through: getsid
# tries: which threads exist, asked by their session
import os
import threading
import time

threading.stack_size(1 << 16)
once = [threading.Event() for _ in range(32)]
threads = []
word = 0xA5 << 24 | FRAME
for place in range(32):
    thread = threading.Thread(target=once[place].wait, daemon=True)
    thread.start()
for place in range(32):
    if not word >> (31 - place) & 1:
        once[place].set()
time.sleep(HOLD_S)
os._exit(0)
# %% receiver
import os


def exists(tid):
    try:
        os.getsid(tid)
    except PermissionError:
        return False
    except ProcessLookupError:
        return False
    return True
receive_threads(exists)
