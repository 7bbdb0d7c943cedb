# group: sessions
# mode: session
# tries: to write to the control descriptor from a thread, while no cell runs
# breach: the next cell has the thread's answer
# expect: ok timeout
# output: started
# held-by: the supervisor drops a session that answers without being asked
import os
import threading


def answer() -> None:
    for kind in range(32):
        os.write(3, bytes([kind, 6, 0, 0, 0]) + b"FORGED")


threading.Timer(0.05, answer).start()
print("started")
# %% pause
# seconds: 0.3
# %% cell
# tries: to get the true answer
# expect: ok lost timeout signaled
# output: (real 42|lost)
# forbid: FORGED
print("real", 6 * 7)
