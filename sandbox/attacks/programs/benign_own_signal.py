# group: benign
# tries: nothing bad: a timer of its own with a handler, as programs do that limit themselves
# expect: ok
# output: ^in time$
import signal
import time


def late(number: int, frame: object) -> None:
    raise TimeoutError


signal.signal(signal.SIGALRM, late)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    time.sleep(2)
except TimeoutError:
    print("in time")
