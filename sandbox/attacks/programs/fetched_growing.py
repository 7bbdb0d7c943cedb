# mypy: ignore-errors
# group: files
# mode: session
# tries: to append to a file without end while it is fetched
# breach: the answer has more than a file may have, or no answer comes
# expect: ok
# output: started
# held-by: a file is read up to the size that it had when it was opened
# limits: wall_s=20 file_bytes=4194304
import os
import threading

file = os.open("grows", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def grow() -> None:
    while True:
        os.truncate("grows", 0)
        try:
            while True:
                os.write(file, b"A" * 65_536)
        except OSError:
            pass


import signal

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
threading.Thread(target=grow, daemon=True).start()
print("started")
# %% cell
# tries: it again, twice
# expect: ok
# output: FETCHED 1 files, (\d{1,6}|[123]\d{6}|4[01]\d{5}) bytes, of b'A?'
# fetch: grows
# %% cell
# expect: ok
# output: FETCHED 1 files, (\d{1,6}|[123]\d{6}|4[01]\d{5}) bytes, of b'A?'
# fetch: grows
print("x" * (3 << 19))
