# group: sessions
# mode: session
# tries: to signal its branch or its original, which are the same program's processes
# breach: the signal is sent
# expect: ok
# output: HELD
# held-by: seccomp
import os
import signal

first = os.getpid()
print("HELD so far")
# %% branch
# tries: to signal the original from the branch
# expect: ok
# output: HELD
try:
    os.kill(first, signal.SIGCONT)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: sent" if os.getpid() != first else "HELD: a namespace with the same number")
