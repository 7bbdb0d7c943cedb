# group: persistence
# tries: to go on in a daemon thread after the call has ended
# breach: the call lasts, or something is written after its end
# expect: ok
# output: ended
# held-by: the end of the process
import threading
import time


def later() -> None:
    while True:
        time.sleep(0.1)
        print("still here")


threading.Thread(target=later, daemon=True).start()
print("ended")
# %% call
# tries: to see what is printed into a later call
# expect: ok
# output: \Awaiting\n\Z
import time

print("waiting")
time.sleep(0.7)
