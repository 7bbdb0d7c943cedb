# group: sessions
# mode: session
# tries: to make the interpreter's lock unavailable to the main thread between cells
# breach: the next cell waits past its wall clock
# expect: ok timeout
# output: \A
# held-by: wall clock
# limits: wall_s=1
import re
import threading
import time


def keep_the_lock() -> None:
    time.sleep(0.2)  # the first cell is to end before
    re.match(r"(a+)+$", "a" * 64 + "b")


thread = threading.Thread(target=keep_the_lock, daemon=True)
thread.start()
print("started")
# %% cell
# tries: to have the lock back from a thread that, once it runs, never gives it away
# expect: timeout lost
# output: (\A|died)
while thread.is_alive():
    time.sleep(0.001)
print("BREACH: it has the lock")
