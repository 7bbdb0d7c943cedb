"""Typical short programs, run once before forking: parsing, printing, and the error paths of both."""

import contextlib
import io
import itertools
import json
import math
import random
import re
import statistics
import traceback
from collections import Counter, defaultdict, deque
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, reduce

PROGRAMS = (
    "def solution():\n    price = 3.5\n    total = price * 12\n    return total\nprint(solution())",
    "import math\nn = 10\nprint(math.gcd(n, 4), math.sqrt(n), math.factorial(5), math.comb(5, 2), math.pi)",
    "total = 0\nfor i in range(50):\n    if i % 3 == 0 and i % 5:\n        total += i\nprint(f'{total:.2f}')",
    "class Point:\n    def __init__(self, x):\n        self.x = x\np = Point(2)\nprint(p.x, [p.x], {'a': 1})",
    "from fractions import Fraction as F\nx = F(3, 4) + F(1, 6)\nprint(x, float(x), x.numerator)",
    "words = 'to be or not'.split()\nprint(sorted(set(words), key=len), max(map(len, words)), sum([1, 2]))",
    "primes = [n for n in range(2, 60) if all(n % d for d in range(2, int(n**0.5) + 1))]\nprint(primes[-1])",
)
FAULTY = ("1 / 0", "print(undefined)", "def broken(:", "int('x')", "[][1]", "{}['k']", "x = 1\n  y = 2")

with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    for text in PROGRAMS:
        exec(compile(text, "<cell>", "exec", dont_inherit=True), {"__name__": "__main__"})
        eval(compile("(1, 'a', [2.5])", "<cell>", "eval", dont_inherit=True), {})
    for text in FAULTY:
        try:
            exec(compile(text, "<cell>", "exec", dont_inherit=True), {"__name__": "__main__"})
        except Exception as error:  # each is faulty in its own way
            summary = traceback.TracebackException.from_exception(error, lookup_lines=False, compact=True)
            print("".join(summary.format()))

    print(re.findall(r"\d+|[a-z]+", "a1 b22"), re.sub(r"(\w)\1", "-", "aabb"))
    print(json.loads(json.dumps({"a": [1, 2.5, None, "x"], "b": {"c": True}})))
    print(Counter("hello").most_common(2), defaultdict(list), deque([1], maxlen=2))
    print(Fraction(1, 3) + Fraction(1, 6), Fraction(0.5).limit_denominator(10), Decimal("0.1") + 1)
    print(reduce(lambda a, b: a * b, range(1, 9)), lru_cache(maxsize=None)(abs)(-1))
    print(list(itertools.combinations(range(4), 2))[:2], list(itertools.permutations("abc"))[:2])
    print(statistics.mean([1, 2, 3]), round(math.pi, 4), 7 // 2, 7 % 3, 2**100, divmod(9, 4), bin(10))
    print(f"{3.14159:.2f} {1000000:,} {'x':>5} {0.25:.0%} {1e-9:g}", "a-b".join("cd"), f"{3}", "x".center(3))
    print(date(2024, 2, 28) + timedelta(days=2), random.Random(0).sample(range(9), 2))
