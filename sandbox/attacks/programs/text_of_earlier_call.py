# group: secrets
# tries: nothing by itself: it only has a text that the next call must not find
# breach: see the next call
# expect: ok
# output: said
# held-by: the fork server never holds a program
secret = "swordfish-1f8e3a5c7d90b246"
print("said", len(secret))
# %% call
# tries: to find the text of an earlier call in the memory that it inherited
# expect: ok
# output: HELD: [1-9]\d* pages
# limits: wall_s=20 cpu_s=20
import ctypes
import os
import re

libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
libc.write.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
pattern = re.compile(rb"swordfish-[0-9a-f]{16}")
read_end, write_end = os.pipe()
pages = 0
found = b""
top = libc.sbrk(0)
starts = {address >> 26 << 26 for address in map(id, (object(), [], os, re.compile, "x" * 600, bytearray(9)))}
ranges = [(top - (48 << 20), top), *((start, start + (1 << 26)) for start in sorted(starts))]
for begin, end in ranges:
    for page in range(begin & ~4095, end, 4096):
        if libc.write(write_end, page, 4096) == 4096:
            pages += 1
            if match := pattern.search(os.read(read_end, 4096)):
                found = match.group()
print(f"BREACH: {found!r}" if found else f"HELD: {pages} pages")
