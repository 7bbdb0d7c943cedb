# group: memory
# tries: an anonymous map that is reserved and not counted (MAP_NORESERVE)
# breach: it exists
# expect: ok
# output: HELD: OSError
# held-by: rlimits
# loosened: memory_bytes=17179869184
import mmap

MAP_NORESERVE = 0x4000
try:
    area = mmap.mmap(-1, 1 << 33, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: {len(area) >> 30} GiB of addresses")
