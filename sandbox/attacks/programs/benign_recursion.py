# group: benign
# tries: nothing bad: recursion that is deep and ends
# expect: ok
# output: ^4000$
import sys

sys.setrecursionlimit(5000)


def depth(n: int) -> int:
    return 0 if n == 0 else 1 + depth(n - 1)


print(depth(4000))
