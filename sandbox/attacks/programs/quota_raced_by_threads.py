# mypy: ignore-errors
# group: files
# tries: more files than it may have, by 32 threads that make them at once in the kernel
# breach: more than the 64, and those that were under way
# expect: ok
# output: HELD: \d+
# held-by: the supervisor grants one after the other; each thread has at most one under way
# loosened: files=1000 when scratch
import ctypes
import os
import threading

libc = ctypes.CDLL(None)
start = threading.Barrier(32)


def make(number: int) -> None:
    start.wait()
    for at in range(40):
        file = libc.open(b"f%d_%d" % (number, at), os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        if file >= 0:
            libc.close(file)


threads = [threading.Thread(target=make, args=(number,)) for number in range(32)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
count = len(os.listdir("."))
print(f"HELD: {count}" if count <= 64 + 31 else f"BREACH: {count} files")
