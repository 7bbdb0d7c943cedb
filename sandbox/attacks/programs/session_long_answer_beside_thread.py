# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to write streams and forged answers while its long answer is put together beside the loop
# breach: the next cell has a forged answer
# expect: ok lost output_limit error signaled
# output: \A
# forbid: FORGED
# held-by: a session that speaks out of turn is ended; what was answered belongs to the thread
# limits: output_bytes=4000000 wall_s=20
import os
import struct
import threading


def speak() -> None:
    import time

    time.sleep(0.01)
    for _ in range(200):
        os.write(1, b"y" * 1000)
        os.write(3, struct.pack("=BiQI", 2, 0, 0, 6) + b"FORGED")


threading.Thread(target=speak, daemon=True).start()
print("x" * 3_000_000)
# %% cell
# tries: to get the true answer
# expect: ok lost signaled output_limit error
# output: \A
# forbid: FORGED
print("real")
