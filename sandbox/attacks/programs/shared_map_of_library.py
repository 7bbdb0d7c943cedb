# group: files
# tries: a writable shared map of a library, whose pages all processes use
# breach: the map exists
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: reading only
import mmap
import os

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
try:
    mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: mapped for writing")
