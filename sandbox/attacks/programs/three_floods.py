# mypy: ignore-errors
# group: output
# tries: to flood both streams and the value at once, from threads
# breach: it ends otherwise than by its limit
# expect: output_limit
# output: x
# held-by: the supervisor
import os
import threading


def flood(fd: int) -> None:
    while True:
        os.write(fd, b"x" * 65_536)


for fd in (1, 2, 3):
    threading.Thread(target=flood, args=(fd,), daemon=True).start()
threading.Event().wait()
