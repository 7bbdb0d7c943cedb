# group: memory
# tries: to grow a small map with mremap
# breach: it grew past the limit
# expect: ok
# output: HELD: (OSError|SystemError|MemoryError)
# held-by: rlimits
# loosened: memory_bytes=17179869184
import mmap

area = mmap.mmap(-1, 1 << 16)
try:
    area.resize(1 << 33)
except (OSError, SystemError, MemoryError) as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: {len(area) >> 30} GiB")
