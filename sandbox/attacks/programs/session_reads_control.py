# group: sessions
# mode: session
# tries: to read the next cell from the control descriptor in a thread, so that the interpreter misses it
# breach: the next cell waits past its wall clock
# expect: ok
# output: started
# held-by: wall clock
# limits: wall_s=3
import os
import threading


def steal() -> None:
    while os.read(3, 1 << 16):
        pass


threading.Thread(target=steal, daemon=True).start()
print("started")
# %% cell
# tries: to run
# expect: ok timeout lost error signaled
# output: (ran|died|\A)
print("ran")
