# group: memory
# tries: explicit huge pages, taken from a pool of the whole machine
# breach: the map exists
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: seccomp
import mmap

MAP_HUGETLB = 0x40000
try:
    mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: a huge page")
