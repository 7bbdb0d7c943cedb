# group: memory
# tries: to overflow the C stack, through a repr that calls itself in C
# breach: none is possible, it must end by a signal or an error
# expect: signaled error memory_limit
# output: falling
# held-by: the kernel's guard page
import sys

sys.setrecursionlimit(2**31 - 1)
print("falling")
nested: list[object] = []
for _ in range(1_000_000):
    nested = [nested]
print(len(repr(nested)))
