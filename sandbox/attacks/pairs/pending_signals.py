# mypy: ignore-errors
# when: after
# bits: 1
# through: kill tgkill rt_sigprocmask rt_sigtimedwait
# tries: the signals that wait, which a user's processes count together where programs share a user
# %% receiver
import os
import signal

signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
try:
    for _ in range(256):
        os.kill(os.getpid(), signal.SIGRTMIN + 5)
except OSError:
    pass
count = 0
while signal.sigtimedwait({signal.SIGRTMIN + 5}, 0):
    count += 1
if count > 64:
    print("BREACH:", count, "wait, of as many as one likes")
