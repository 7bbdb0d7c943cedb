# group: sessions
# mode: session
# tries: to use a core between cells in C code without the interpreter's lock, deaf to SIGXCPU
# breach: more than three seconds are used while nothing was asked
# expect: ok
# output: started
# held-by: rlimits
import hashlib
import signal
import threading
import time

signal.signal(signal.SIGXCPU, signal.SIG_IGN)
work = (b"password", b"salt", 20_000_000)
threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", *work), daemon=True).start()
begin = time.process_time()
print("started")
# %% pause
# seconds: 5
# %% cell
# tries: to tell what it used
# expect: ok lost
# output: (HELD|lost)
used = time.process_time() - begin
print(f"BREACH: {used:.1f} s" if used > 3.5 else f"HELD: {used:.1f} s")
