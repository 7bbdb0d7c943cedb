# group: sessions
# mode: session
# tries: to go on in a thread after the cell has ended, and to print into the answers of later cells
# breach: a later cell's own answer is wrong
# expect: ok
# output: started
# held-by: none, a session is one program; the answers must stay whole
import threading
import time


def murmur() -> None:
    for _ in range(200):
        time.sleep(0.005)
        print("murmur")


threading.Thread(target=murmur, daemon=True).start()
print("started")
# %% cell
# tries: to have a value of its own
# expect: ok
# output: ^42$
6 * 7
# %% cell
# tries: to raise an error of its own
# expect: error
# output: ZeroDivisionError
1 / 0
