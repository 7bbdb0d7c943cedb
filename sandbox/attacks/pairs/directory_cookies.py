# mypy: ignore-errors
# when: after
# baseline: yes
# bits: 5
# through: openat mkdirat unlinkat rmdir getdents64 lseek
# tries: how many files a directory has seen, by the places of its entries
for place in range(1 + SECRET):
    open(str(place), "w").close()
# %% receiver
import ctypes

libc = ctypes.CDLL(None)
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
open("own", "w").close()
folder = ctypes.c_void_p(libc.opendir(b"."))
most = 0
while entry := libc.readdir(folder):
    place = int.from_bytes(ctypes.string_at(entry + 8, 8), "little")
    most = max(most, place if place < 1 << 30 else 0)
say(most)
