# mypy: ignore-errors
# when: live
# through: stat newfstatat access
# open: without namespaces of root; to bash and compiled programs
# closed-with: uid namespaces
# tries: which threads exist, by how /proc/N is refused once its own process has looked it up
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
    threads.append(thread)
for place in range(32):
    if word >> (31 - place) & 1:
        os.path.exists(f"/proc/{threads[place].native_id}/x")
    else:
        once[place].set()
time.sleep(HOLD_S)
os._exit(0)
# %% receiver
import os


def exists(tid):
    try:
        os.stat(f"/proc/{tid}/x")
    except PermissionError:
        return True
    except OSError:
        return False
    return True
receive_threads(exists)
