# mypy: ignore-errors
# group: others
# tries: to change what the kernel keeps per process: directory, mask, signals, timers, blocked signals
# breach: a later call starts with it
# expect: ok
# output: changed
# held-by: fork
import os
import signal
import sys

os.umask(0)
os.chdir("/")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signal.setitimer(signal.ITIMER_REAL, 30)
sys.stdout.reconfigure(line_buffering=False)
print("changed")
# %% call
# tries: to see what the first call did
# expect: ok
# output: HELD
import os
import signal

clean = (
    os.umask(0o22) != 0
    and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    and not signal.pthread_sigmask(signal.SIG_BLOCK, set())
    and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
)
print("HELD" if clean else "BREACH: settings kept")
