# mypy: ignore-errors
# group: cpu
# tries: a timer that interrupts it a million times a second
# breach: another call gets no answer
# expect: ok timeout
# output: \A
# held-by: limits; the wall clock
# limits: wall_s=1
import signal
import time

count = 0


def ring(number: int, frame: object) -> None:
    global count
    count += 1


signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    pass
signal.setitimer(signal.ITIMER_REAL, 0)
print("HELD:", count > 0)

# %% meanwhile
# tries: to run at the same time
# expect: ok
# output: HELD
print("HELD:", 6 * 7)
