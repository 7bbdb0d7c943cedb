# mypy: ignore-errors
# group: memory
# tries: to split a map into as many parts as the kernel counts
# breach: another call gets no answer
# expect: ok
# output: HELD
# held-by: a limit of the kernel per process
import ctypes
import mmap

libc = ctypes.CDLL(None)
whole = mmap.mmap(-1, 8000 * 4096)
start = ctypes.addressof(ctypes.c_char.from_buffer(whole))
for page in range(0, 8000, 2):
    libc.mprotect(ctypes.c_void_p(start + page * 4096), 4096, 1)
print("HELD: split")

# %% meanwhile
# tries: to run at the same time
# expect: ok
# output: HELD
print("HELD:", 6 * 7)
