# group: processes
# tries: to live on in a thread after the program has ended
# breach: no end by the wall clock
# expect: timeout
# output: main ended
# held-by: wall clock
# limits: wall_s=0.4
# loosened: wall_s=3
import threading
import time


def stay() -> None:
    for _ in range(10):
        time.sleep(0.1)
    print("BREACH: a second later")


threading.Thread(target=stay).start()
print("main ended")
