"""Programs by what is special about how they end; test_two_ways.py runs them. Most are in ending_programs.toml."""

import tomllib
from pathlib import Path

LATE = "threading.Thread(target=lambda: (threading.main_thread().join(), print('late'))).start()\n"
"""A thread that goes on when the program has come to its end."""

DEEP = [
    "(" * 300,
    *(f"{'(' * n}1{')' * n}" for n in (90, 100, 300)),
    *(f"print({'[' * n}{']' * n})" for n in (90, 150, 300)),
    *(t.format("+".join(["1"] * n)) for n in (900, 1500, 3000, 9000) for t in ("print({})", "x = {}\nx")),
    *(t.format("-" * n) for n in (1500, 6000) for t in ("x = {}1\nprint(x)", "{}1")),
    *("".join(" " * k + "if 1:\n" for k in range(n)) + " " * n + "print(2)" for n in (18, 90, 110)),
]
ODD_TEXTS = [
    *("# -*- coding: latin-1 -*-\nprint('é')", "# coding: nowhere\nprint(1", "\ufeffprint(1)"),
    *("print(1)\ufeff", "x = '\ud800'", "print('\ud800')", "1 +\0 2", "\0", "print('a\0b')"),
    *("é = 1\nundefined", "'é' + 1", "x = 'é' undefined", "print('世界'", "世界", "print('世界', undefined)"),
    *("名 = 5\n名 / 0", "x = “5”", "x\xa0= 5", "print(1)\r\n1 / 0\r\n", "x = 1\rx / 0", "print(1)\r\n"),
    *("x = '''a\r\nb'''\nx", "\fprint(1)", "\f1 / 0", "\tprint(1)", "if 1:\n\tx = 1\n        y = 2", "\\"),
    *("print(1)\\", "print(1) \\\n", "'\\N{no}'", "'\\x'", "b'é'", "f'{'", "f'{1 +}'", "f'{undefined}'"),
    *("0777", "1_", "1__0", "5x", "0x", "1e", "x = 5 6", "print 'a'", "x == = 5", "x = (1,\n2", "x = 1)"),
    *("x = [1)", "def f():", "for x in y", "if x = 1: pass", "class", "lambda", "*", "...", "return"),
    *("yield", "yield 5", "break", "continue", "await f()", "async def f(): pass\nf()", "nonlocal x"),
    *("global x\nx", "def f():\n    x = 1\n    global x", "from __future__ import nothing"),
    *("from x import *", "import", "x: int", "x: undefined", "print(*5)", "f(**1, *2)", "f(a=1, a=2)"),
    *("f(1, a=2, 3)", "(x for x in 1)", "del f()", "f() = 1", "'''", "'''\nabc", "'abc", '"', "#", "# )"),
    *("; ", ";;", "1;;", "1; ;", "1;\n;", "print(1); # )", "5; # 6", "5 ;  ", "5\n;"),
]
"""Texts that are no Python, or written as few are."""

LAST_LINES = [
    *("f()", "x = 1\nf(x)", "if True:\n    x = 1\nf(2)", "x = '''\nf()\n'''", "x = (1,\n     f(2)\n)"),
    *("x = \\\nf(3)", "f(4);", "f(5) # )", "for i in range(2):\n    f(i)", "x = 1; f(6)", "lambda: f(7)"),
    *("f(8)\n\n  \n", "'''doc'''\nf(9)", "[f(i) for i in range(2)]", "x = f(10)"),
    *("try:\n    f(11)\nfinally:\n    f(12)", "from __future__ import annotations\nf(13)"),
    *("f(14) if True else f(15)", "del f(1)", "return f(1)", "f(1\n", "f(*[1], **{})"),
    *("def f(x=1): return 'mine', x\nf()", "(f(16))", "print(f(17))", "x = 1\r\nf(18)"),
    *("async def g(): pass\nawait f(19)", "f(1)\nf(2)\n1 / 0\nf(3)", "nonsense(1)"),
]
SOURCES = [
    *(f"def f(*given): return f'f{{given}}'\n{source}" for source in LAST_LINES),
    *("", "print('é世')  # 界", "import linecache\nprint(list(linecache.getlines('<cell>')), __name__)"),
    "import warnings\nwarnings.warn_explicit('careful', UserWarning, '<cell>', 2)",
    "import random\nprint(random.random())",
]
"""Sources whose last line is a call, or looks like one, and what they leave behind."""

WRITTEN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PROGRAMS: dict[str, list[str]] = {**WRITTEN, "deep": DEEP, "odd texts": ODD_TEXTS, "sources": SOURCES}
