# mypy: ignore-errors
# when: live
# bits: 4
# slots: 0.003
# through: futex mmap set_tid_address
# tries: the end of a thread, by which the kernel wakes who waits on a word of a library's page
# needs: x86_64
import ctypes
import os
import threading

threading.stack_size(1 << 16)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
base = libc.mmap(None, 4096, 1, 1, fd, ctypes.c_long(0))
def end(symbol):
    libc.syscall(218, ctypes.c_void_p(base + 4 * symbol))
for slot, symbol in enumerate(SYMBOLS):
    at(slot)
    threading.Thread(target=end, args=(symbol,), daemon=True).start()
at(COUNT + 1)
os._exit(0)
# %% receiver
import ctypes
import os
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
base = libc.mmap(None, 4096, 1, 1, fd, ctypes.c_long(0))
seen = []
def wait(symbol):
    word, value = ctypes.c_void_p(base + 4 * symbol), ctypes.c_uint.from_address(base + 4 * symbol)
    while libc.syscall(202, word, 0, value, None) == 0:
        seen.append((time.monotonic(), symbol))
for symbol in range(16):
    threading.Thread(target=wait, args=(symbol,), daemon=True).start()
at(COUNT + 2)
symbols = [0] * COUNT
for when, symbol in seen:
    slot = int((when - START) / SLOT_S)
    if 0 <= slot < COUNT:
        symbols[slot] = symbol
tell(symbols)
os._exit(0)
