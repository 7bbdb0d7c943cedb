# group: sessions
# mode: session
# tries: to end the process from a thread, between two cells or at the start of the next
# breach: the next cell waits for ever, or has a result
# expect: ok
# output: started
# held-by: a pidfd
import os
import threading

print("started", flush=True)  # first: on a busy machine the thread may end the process within this cell
threading.Timer(0.05, os._exit, [0]).start()
# %% pause
# seconds: 0.3
# %% cell
# tries: to run
# expect: ok lost
# output: \A
import time

time.sleep(30)  # it ends as soon as the process does
print("BREACH: alive")
# %% cell
# tries: to run after the process is surely gone
# expect: lost
# output: died
print("BREACH: alive")
