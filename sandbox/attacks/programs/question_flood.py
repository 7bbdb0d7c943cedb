# group: others
# tries: to keep the supervisor busy with questions that the kernel asks it: signals and new files without end
# breach: another call gets no answer meanwhile
# expect: ok
# output: asked
# held-by: an event loop that serves all
import os
import threading
import time

end = time.monotonic() + 1.5


def ask() -> None:
    while time.monotonic() < end:
        try:
            os.kill(os.getpid(), 0)
            os.mkdir("folder")
            os.rmdir("folder")
        except OSError:
            continue


threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("asked")
# %% meanwhile
# tries: to run at the same time
# expect: ok
# output: ^42$
print(6 * 7)
