# mypy: ignore-errors
# when: live
# bits: 6
# slots: 0.0001 0.001 0.003
# through: stat newfstatat dup close
# tries: how many descriptors another process has, the size of /proc/N/fd
# open: without namespaces of root
# closed-with: uid namespaces
import os

fds = [os.dup(0) for _ in range(128)]
for slot, symbol in enumerate(SYMBOLS):
    at(slot)
    while len(fds) > 128 + symbol:
        os.close(fds.pop())
    while len(fds) < 128 + symbol:
        fds.append(os.dup(0))
at(COUNT)
# %% receiver
import os

own = os.getpid()
def size(pid):
    try:
        return os.stat(f"/proc/{pid}/fd").st_size
    except OSError:
        return 0
def changes(pid):
    seen = set()
    for turn in range(5):
        seen.add(size(pid))
        _time.sleep(SLOT_S * 1.5)
    return len(seen)
at(1)
found = [pid for pid in range(max(2, own - 900), own + 900) if 128 <= size(pid) < 230]
path = f"/proc/{max(found, key=changes) if found else own}/fd"
levels = []
for slot in range(COUNT):
    at(slot + 0.7)
    levels.append(os.stat(path).st_size)
tell([level - min(levels) & 63 for level in levels])
