"""The solutions of the quickstart's puzzles in words, to be put before a conversation's first call."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any


def with_reasons(row: Mapping[str, Any]) -> dict[str, Any]:
    """The conversation with its first assistant message opened by the solution; a question of no known form,
    and one that is answered without a call, stay as they are."""
    messages = [dict(message) for message in row["messages"]]
    question = next(message["content"] for message in messages if message["role"] == "user")
    first = next(message for message in messages if message["role"] == "assistant")
    reason = reason_for(question)
    if reason and first.get("tool_calls"):
        first["content"] = f"{reason} {first.get('content') or ''}".strip()
    return {**row, "messages": messages}


def reason_for(question: str) -> str:
    """The solution of one puzzle; "" where its form is not known."""
    for words, reason in FORMS:
        if re.search(words, question, re.IGNORECASE):
            return reason(question)
    return ""


def _numbers(question: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"[0-9]+", question)]


def _euclid(a: int, b: int) -> tuple[str, int]:
    steps = []
    a, b = max(a, b), min(a, b)
    while b:
        steps.append(f"{a} = {a // b} * {b} + {a % b}")
        a, b = b, a % b
    return ", ".join(steps), a


def _gcd(question: str) -> str:
    steps, found = _euclid(*_numbers(question)[:2])
    return f"{steps}, so the gcd is {found}."


def _lcm(question: str) -> str:
    a, b = _numbers(question)[:2]
    steps, found = _euclid(a, b)
    return f"{steps}, so the gcd is {found} and the lcm {a} * {b} / {found} = {math.lcm(a, b)}."


def _products(question: str) -> str:
    a, b = _numbers(question)[:2]
    digits = [int(digit) * 10**place for place, digit in enumerate(reversed(str(b))) if digit != "0"]
    parts = ", ".join(f"{a} * {part} = {a * part}" for part in digits)
    return f"{parts}, together {a * b}."


def _chain_sum(question: str) -> str:
    expression = question.partition(":")[2].rpartition("=")[0]
    terms = [int(term.replace(" ", "")) for term in re.findall(r"[-+]?\s*[0-9]+", expression)]
    told, total = [], terms[0]
    for term in terms[1:]:
        told.append(f"{total} {'-' if term < 0 else '+'} {abs(term)} = {total + term}")
        total += term
    return f"{', '.join(told)}."


def _primes(question: str) -> str:
    a, b = _numbers(question)[:2]
    return f"A prime from {a} to {b} has no divisor from 2 to {math.isqrt(b)}. I count those without one."


def _bits(question: str) -> str:
    a = _numbers(question)[-1]
    return f"{a} in binary is {a:b}, with {a.bit_count()} ones."


FORMS: tuple[tuple[str, Callable[[str], str]], ...] = (
    (r"greatest common divisor|\bgcd\b", _gcd),
    (r"least common multiple|\blcm\b", _lcm),
    (r"prime", _primes),
    (r"1 bits", _bits),
    (r"calculate[^:]*:\s*[0-9]+\s*\*|[0-9]\s*\*\s*[0-9]", _products),
    (r":\s*-?[0-9]+\s*[-+]", _chain_sum),
)
"""What a question says, and its solution: the first that fits."""
