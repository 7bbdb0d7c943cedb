# mypy: ignore-errors
# group: persistence
# tries: to leave a mask of modes, a blocked signal and a limit for the next call
# breach: one is found
# expect: ok
# output: HELD
# held-by: fork
import contextlib
import os
import resource
import signal

os.umask(0o777)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
with contextlib.suppress(ValueError):
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
print("HELD: left")

# %% call
# tries: to find one
# expect: ok
# output: HELD
import os
import resource
import signal

mask, blocked = os.umask(0o22), signal.pthread_sigmask(signal.SIG_BLOCK, set())
left = mask == 0o777 or signal.SIGUSR1 in blocked or resource.getrlimit(resource.RLIMIT_NOFILE)[1] == 32
print("BREACH: found" if left else "HELD: nothing", mask, blocked)
