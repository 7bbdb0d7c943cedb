# group: sessions
# mode: session
# tries: to be copied while a thread holds a lock, which nobody will ever release in the copy
# breach: the branch hangs without an end
# expect: ok
# output: held
# held-by: wall clock
# limits: wall_s=10
import threading
import time

lock = threading.Lock()


def hold() -> None:
    with lock:
        time.sleep(30)


threading.Thread(target=hold, daemon=True).start()
time.sleep(0.05)
print("held")
# %% branch
# tries: to take the lock in the branch
# expect: timeout error ok lost refused
# output: \A
print("taking")
lock.acquire()
