# group: memory
# tries: malloc, which Python's own accounting does not see
# breach: twice the limit is held
# expect: ok
# output: HELD: after \d+
# held-by: rlimits
# limits: memory_bytes=268435456
# loosened: memory_bytes=1073741824
import ctypes

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
count = 0
while count < 64 and libc.malloc(ctypes.c_size_t(8 << 20)):
    count += 1
print(f"HELD: after {count}" if count < 64 else "BREACH: 512 MB")
