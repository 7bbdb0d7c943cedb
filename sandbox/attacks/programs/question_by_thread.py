# group: others
# tries: a signal to its parent from a second thread, whose number the supervisor must look up
# breach: the signal is sent
# expect: ok
# output: HELD
# held-by: seccomp, landlock
import os
import signal
import threading


def shoot() -> None:
    try:
        os.kill(os.getppid(), signal.SIGCONT)
    except OSError as error:
        print(f"HELD: {error!r}")
    else:
        print("BREACH: sent")


thread = threading.Thread(target=shoot)
thread.start()
thread.join()
