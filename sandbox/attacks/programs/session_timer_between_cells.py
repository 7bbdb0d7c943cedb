# group: sessions
# mode: session
# tries: a timer that kills the process while no cell runs
# breach: the next cell waits past its wall clock
# expect: ok
# output: armed
# held-by: a pidfd
import signal

signal.setitimer(signal.ITIMER_REAL, 0.05)
print("armed")
# %% pause
# seconds: 0.3
# %% cell
# tries: to run
# expect: lost
# output: died
print("BREACH: alive")
