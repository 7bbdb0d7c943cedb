# group: sessions
# mode: session
# tries: a timer that kills the process while no cell runs
# breach: the next cell waits past its wall clock
# expect: ok signaled
# output: armed
# held-by: a pidfd
import signal

print("armed", flush=True)  # first: on a busy machine the timer may end the process within this cell
signal.setitimer(signal.ITIMER_REAL, 0.05)
# %% pause
# seconds: 0.3
# %% cell
# tries: to run
# expect: lost signaled
# output: (died|\A)
print("BREACH: alive")
