# group: output
# tries: a value whose repr ends the process with success after an error was due
# breach: none beyond what os._exit(0) can do; the value must stay absent
# expect: ok
# output: \A
# held-by: the ending comes from the kernel
# value: none
import os


class Exits:
    def __repr__(self) -> str:
        os._exit(0)


Exits()
