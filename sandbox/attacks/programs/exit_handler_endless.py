# group: cpu
# tries: an exit handler that never returns
# breach: no end by the wall clock
# expect: timeout
# output: handler
# held-by: wall clock
# limits: wall_s=1
import atexit


def stay() -> None:
    print("handler")
    while True:
        pass


atexit.register(stay)
