# group: output
# tries: to fill both streams from two threads at once, so that a reader of one blocks the other
# breach: no end
# expect: output_limit
# output: [xe]{1000}
# held-by: output limit
# limits: output_bytes=10000 wall_s=60
import os
import threading


def flood(fd: int, letter: bytes) -> None:
    while True:
        os.write(fd, letter * 5000)


threading.Thread(target=flood, args=(1, b"x")).start()
flood(2, b"e")
