"""The programs that are run: A, B, C with a nonce each, and the programs language models wrote.

A nonce makes every program different and every answer checkable: no cache can help, and an answer that
belongs to another call is seen.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """code, what it prints (compared without white space), and the flavour that serves it best."""

    code: str
    expected: str
    flavour: str
    name: str = ""

    def right(self, stdout: str | None) -> bool:
        return stdout is not None and squeeze(stdout) == squeeze(self.expected)


def squeeze(text: str) -> str:
    return "".join(text.split())


def print_program(nonce: int) -> Program:
    """A: prints one number."""
    return Program(code=f"print({nonce})", expected=f"{nonce}", flavour="stdlib")


def sympy_program(nonce: int) -> Program:
    """B: a small symbolic integral."""
    code = f"from sympy import symbols, integrate\nx = symbols('x')\nprint(integrate(x**2, x), {nonce})"
    return Program(code=code, expected=f"x**3/3 {nonce}", flavour="numeric")


def numpy_program(nonce: int) -> Program:
    """C: a 3 by 3 linear system whose solution is (1, 2, 3)."""
    code = (
        "import numpy as np\na = np.array([[3.0, 1.0, 0.0], [1.0, 4.0, 2.0], [0.0, 2.0, 5.0]])\n"
        f"print(np.round(np.linalg.solve(a, [5.0, 15.0, 19.0])).astype(int).tolist(), {nonce})"
    )
    return Program(code=code, expected=f"[1, 2, 3] {nonce}", flavour="numeric")


MAKERS = {"print": print_program, "numpy": numpy_program, "sympy": sympy_program}


def nonced(kind: str, first_nonce: int = 1_000_000) -> Iterator[Program]:
    """Endless programs of one kind, no two the same."""
    return map(MAKERS[kind], count(first_nonce))


NUMERIC_MODULES = frozenset({"sympy", "numpy", "scipy", "matplotlib", "pandas", "mpmath"})


def flavour_for(code: str) -> str:
    """What a program imports anywhere decides its flavour; one that does not parse needs nothing."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError):
        return "stdlib"
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return "numeric" if NUMERIC_MODULES & {name.split(".")[0] for name in names} else "stdlib"


def load_real(path: Path, limit: int | None = None) -> list[Program]:
    """The programs of a JSONL file that are recorded `ok`, in file order: fields id, code, expected_output,
    status."""
    programs: list[Program] = []
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            if row["status"] != "ok":
                continue
            programs.append(
                Program(
                    code=row["code"],
                    expected=row["expected_output"],
                    flavour=flavour_for(row["code"]),
                    name=row["id"],
                )
            )
            if len(programs) == limit:
                break
    if not programs:
        raise ValueError(f"{path} holds no program with status ok")
    return programs
