# mypy: ignore-errors
# group: sessions
# mode: session
# tries: nothing bad: a branch must be able to signal itself, though its process id is new
# breach: none; the branch's own filter must know the new process id
# expect: ok
# output: ready
# held-by: seccomp
import os
import signal

seen = []
signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
print("ready")
# %% branch
# tries: to signal itself
# expect: ok error
# output: (\[10\]|\[<Signals|PermissionError)
os.kill(os.getpid(), signal.SIGUSR1)
print(seen)
