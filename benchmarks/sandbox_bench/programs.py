"""Programs with a nonce each: no cache can help, and an answer that belongs to another call is seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class Program:
    """Its code and its output, which is compared without white space."""

    code: str
    expected: str

    def right(self, stdout: str | None) -> bool:
        return stdout is not None and "".join(stdout.split()) == "".join(self.expected.split())


def print_program(nonce: int) -> Program:
    return Program(f"print({nonce})", f"{nonce}")


def sympy_program(nonce: int) -> Program:
    code = f"from sympy import symbols, integrate\nx = symbols('x')\nprint(integrate(x**2, x), {nonce})"
    return Program(code, f"x**3/3 {nonce}")


MAKERS = {"print": print_program, "sympy": sympy_program}


def nonced(kind: str, first_nonce: int = 1_000_000) -> Iterator[Program]:
    """Endless programs of one kind, no two the same."""
    return map(MAKERS[kind], count(first_nonce))
