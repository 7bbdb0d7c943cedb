# group: memory
# tries: recursion without end after switching the interpreter's limit off
# breach: it goes on
# expect: memory_limit signaled timeout error
# output: falling
# held-by: rlimits
# limits: memory_bytes=268435456 wall_s=3
import sys

sys.setrecursionlimit(2**31 - 1)
print("falling")


def fall() -> None:
    fall()


fall()
