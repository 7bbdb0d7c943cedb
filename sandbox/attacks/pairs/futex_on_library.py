# mypy: ignore-errors
# when: live
# through: futex mmap
# tries: waiters on words of a library file's pages, counted by waking them
# needs: x86_64
import ctypes
import os
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
base = libc.mmap(None, 4096, 1, 1, fd, 0)
def wait(at):
    value = int.from_bytes(ctypes.string_at(base + at, 4), "little")
    libc.syscall(202, ctypes.c_void_p(base + at), 0, ctypes.c_uint(value), None)
for place in range(6):
    word = place * 16 + (FRAME >> 4 * place & 15)
    threading.Thread(target=wait, args=(4 * word,), daemon=True).start()
time.sleep(HOLD_S)
os._exit(0)
# %% receiver
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
base = libc.mmap(None, 4096, 1, 1, fd, 0)
seen = {}
def look():
    for word in range(96):
        if libc.syscall(202, ctypes.c_void_p(base + 4 * word), 1, 1, None) > 0:
            seen[word // 16] = word % 16
    return sum(value << 4 * place for place, value in seen.items()) if len(seen) == 6 else -1
receive(look)
