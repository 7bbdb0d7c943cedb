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

threading.Thread(target=re.match, args=(r"(a+)+$", "a" * 64 + "b"), daemon=True).start()
print("started")
# %% cell
# tries: to run
# expect: timeout lost
# output: (\A|died)
print("BREACH: it has the lock")
