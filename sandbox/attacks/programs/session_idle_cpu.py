# group: sessions
# mode: session
# tries: to use a core between cells, deaf to the signal of the processor time limit
# breach: more than two seconds are used while nothing was asked
# expect: ok
# output: started
# held-by: rlimits
import signal
import threading
import time

signal.signal(signal.SIGXCPU, signal.SIG_IGN)


def burn() -> None:
    while True:
        pass


threading.Thread(target=burn, daemon=True).start()
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
