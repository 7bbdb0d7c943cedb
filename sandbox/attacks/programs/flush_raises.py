# group: output
# tries: a standard output whose flush raises at the very end
# breach: the fork server or the supervisor is upset
# expect: ok error
# output: \A
# held-by: the ending comes from the kernel
import sys


class Evil:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        raise KeyboardInterrupt("at the end")


sys.stdout = Evil()
