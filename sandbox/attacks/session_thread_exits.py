# group: sessions
# mode: session
# tries: to end the process between two cells
# breach: the next cell waits for ever, or has a result
# expect: ok
# output: started
# held-by: a pidfd
import os
import threading

threading.Timer(0.05, os._exit, [0]).start()
print("started")
# %% pause
# seconds: 0.3
# %% cell
# tries: to run
# expect: lost
# output: died
print("BREACH: alive")
