# mypy: ignore-errors
# group: files
# mode: session
# tries: to have the supervisor answer with what lay in its own memory, by a file that ends before its size
# breach: the answer has bytes that the file never had
# expect: ok
# output: started
# held-by: what was read is answered, and no more
# limits: wall_s=20
import os
import threading


def shrink() -> None:
    while True:
        file = os.open("shrinks", os.O_RDWR | os.O_CREAT)
        os.pwrite(file, b"A" * (3 << 20), 0)
        os.ftruncate(file, 4096)
        os.ftruncate(file, 2 << 20)
        os.ftruncate(file, 0)
        os.close(file)


threading.Thread(target=shrink, daemon=True).start()
print("started")
# %% cell
# tries: it, twice
# expect: ok
# output: FETCHED [01] files, \d+ bytes, of b'(\\x00)?A?'
# fetch: shrinks
# %% cell
# expect: ok
# output: FETCHED [01] files, \d+ bytes, of b'(\\x00)?A?'
# fetch: shrinks
print("x" * (3 << 19))
