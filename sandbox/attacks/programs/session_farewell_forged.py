# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to answer while it is closed: by a thread, a finaliser, an exit handler and a signal's
# breach: another session has the answer
# expect: ok
# output: ready
# held-by: a line of its own for each session, which ends with it
import atexit
import os
import signal
import struct
import threading


def forge(*_: object) -> None:
    for _ in range(50):
        os.write(3, struct.pack("=BiQI", 2, 0, 0, 6) + b"FORGED")


class Last:
    def __del__(self) -> None:
        forge()


last = Last()
last.itself = last
atexit.register(forge)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGIO, signal.SIGURG):
    signal.signal(number, forge)


def wait() -> None:
    while os.getppid() > 1:
        pass
    forge()


threading.Thread(target=wait, daemon=True).start()
print("ready")
# %% other
# tries: to get its own answer
# expect: ok
# output: ^42$
# forbid: FORGED
6 * 7
