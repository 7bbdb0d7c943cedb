"""The judge on answers of a data set written in other forms, and on near misses of them.

    python benchmarks/judge_on_answers.py math500.jsonl math_train.jsonl [--near 10000] [--out FILE]

Each file has rows with `answer`. Every distinct answer is rewritten in other forms, which the judge should
accept, and changed a little by each change that applies, which it should refuse. Needs the verifier flavour.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from report import claim, finish, result_parser

from rocstar.engine.types import Attempt, Failed, Scored, Task, Turn
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.train.tasks.reward import VERIFIER_FLAVOUR, MathJudge

SEED = 0
WALL_S = 6.0
AT_ONCE = 3
Pair = tuple[str, str, str]
"""(kind, truth, prediction)"""
_NUMBER = re.compile(r"(?<![0-9.])[0-9]+(?![0-9]*\.)")
_FRACTION = re.compile(r"(-?)\\frac\{(\d+)\}\{(\d+)\}")
_PAIR = re.compile(r"([(\[])([^(),\[\]]+),([^(),\[\]]+)([)\]])")
_UNIT = re.compile(r"(.*?)(\\(?:text|mbox|mathrm)\{[^{}]*\}(?:\^\{?\d\}?)?)")
_OTHER_UNITS = {"cm": "m", "meters": "km", "feet": "inches", "hours": "minutes"}
_TURNED = str.maketrans("+-", "-+")
_POWER = re.compile(r"(?<=[a-z0-9])\^(?:\{(\d+)\}|(\d))")
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


# ---------------------------------------------------------------- the same answer


def rewritings(answer: str) -> Iterator[tuple[str, str]]:
    """(kind, text): an answer in the forms of other writers."""
    for kind, text in (*_of_numbers(answer), *_of_expressions(answer)):
        if text != answer:
            yield kind, text


def _of_numbers(answer: str) -> Iterator[tuple[str, str]]:
    if found := _FRACTION.fullmatch(answer):
        sign, top, bottom = found[1], int(found[2]), int(found[3])
        if top > bottom:
            whole, rest = divmod(top, bottom)
            yield "a mixed number in LaTeX", f"{sign}{whole}\\frac{{{rest}}}{{{bottom}}}"
            yield "a mixed number, plain", f"{sign}{whole} {rest}/{bottom}"
        yield "a/b", f"{sign}{top}/{bottom}"
        yield "{a}/{b}", f"{sign}{{{top}}}/{{{bottom}}}"
    if re.fullmatch(r"-?\d{4,}", answer):
        yield "thousands", f"{int(answer):,}"
    if re.fullmatch(r"-?\d+", answer):
        yield "an integer with .0", f"{answer}.0"
        yield "an integer with a unit", f"{answer} \\text{{ cm}}"
    if re.fullmatch(r"[A-Z]", answer):
        yield "a choice in parentheses", f"\\textbf{{({answer})}}"


def _of_expressions(answer: str) -> Iterator[tuple[str, str]]:
    has_root = re.search(r"\\pi|\\sqrt", answer)
    if "\\frac" in answer:
        yield "dfrac", answer.replace("\\frac", "\\dfrac")
    if has_root and re.fullmatch(r"[^=<>,]*", answer) and not re.search(r"text|mbox|\\pm|\\begin", answer):
        yield "a unit behind pi or a root", f"{answer} \\text{{ units}}"
    if (found := _UNIT.fullmatch(answer)) and re.fullmatch(
        r"[^A-Za-z:]*\d[^A-Za-z:]*", re.sub(r"\\[a-z]+", "", found[1])
    ):
        yield "the truth's unit left out", found[1].rstrip("\\ ")
    if re.fullmatch(r"\(.*,.*\)", answer):
        yield "left and right", f"\\left{answer[:-1]}\\right)"
    if "\\pi" in answer:
        yield ("pi, plain", re.sub(r"\\pi", "pi", re.sub(r"(?<=[0-9)]) ?\\pi|(?<=[a-z0-9]\}) ?\\pi", "*pi", answer)))
        yield "pi, Unicode", answer.replace("\\pi", "π")
    if re.search(r"\\sqrt\{[^{}]*\}", answer):
        yield "a root, plain", re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", answer)
        yield "a root, Unicode", re.sub(r"\\sqrt\{(\d+)\}", r"√\1", answer)
    if _POWER.search(answer) and "text" not in answer:
        yield "a power, plain", _POWER.sub(r"**\1\2", answer)
        yield ("a power, Unicode", _POWER.sub(lambda found: (found[1] or found[2]).translate(_SUPERSCRIPTS), answer))
    yield from _of_ranges(answer)


def _of_ranges(answer: str) -> Iterator[tuple[str, str]]:
    signs = {"(": "<", ")": "<", "[": "\\le", "]": "\\le"}
    if "\\infty" in answer and (found := _PAIR.fullmatch(answer)):
        low, high = found[2].strip(), found[3].strip()
        left, right = signs[found[1]], signs[found[4]]
        if "infty" in low and "infty" not in high:
            yield "an interval as an inequality", f"x {right} {high}"
        elif "infty" in high and "infty" not in low:
            yield "an interval as an inequality", f"{low} {left} x"
    found = re.fullmatch(r"([a-z]) ?= ?(.*)", answer)
    if found and re.search("[a-z]", re.sub(r"\\[a-z]+", "", found[2])):
        yield "an equation turned around", f"{found[2]} = {found[1]}"
        yield "an equation on one side", f"{found[1]} - ({found[2]}) = 0"


# ---------------------------------------------------------------- another answer


def _number(answer: str, rng: random.Random) -> str | None:
    places = list(_NUMBER.finditer(answer))
    if not places or "=" in answer:
        return None
    found = rng.choice(places)
    changed = max(0, int(found[0]) + rng.choice((-1, 1, 2, 10)))
    return answer[: found.start()] + str(changed) + answer[found.end() :]


def _sign(answer: str, rng: random.Random) -> str | None:
    if re.search(r"\\text|\\pm|[=<>,]|\\in|_", answer) or not re.search(r"[1-9a-z]", answer):
        return None
    if re.fullmatch(r"-[^+-]*", answer):
        return answer[1:]
    return f"-{answer}" if not re.search(r"[+-]", answer) else f"-({answer})"


def _inner_sign(answer: str, rng: random.Random) -> str | None:
    places = [found.start(1) for found in re.finditer(r"(?<=[0-9a-z})])\s*([+-])", answer)]
    if not places or re.search(r"[=,<>]", answer):
        return None
    at = rng.choice(places)
    return answer[:at] + answer[at].translate(_TURNED) + answer[at + 1 :]


def _missing_term(answer: str, rng: random.Random) -> str | None:
    found = re.fullmatch(r"(.*[0-9a-z})])\s*[+-][^+\-(){}]*", answer)
    return found[1] if found and not re.search(r"[=,<>]", answer) else None


def _swapped(answer: str, rng: random.Random) -> str | None:
    found = _PAIR.fullmatch(answer)
    if found is None or found[2].strip() == found[3].strip():
        return None
    return f"{found[1]}{found[3]},{found[2]}{found[4]}"


def _ends(answer: str, rng: random.Random) -> str | None:
    found = _PAIR.fullmatch(answer)
    turned = {"(": "[", "[": "(", ")": "]", "]": ")"}
    if found is None:
        return None
    left, right = (turned[found[1]], found[4]) if rng.random() < 0.5 else (found[1], turned[found[4]])
    return f"{left}{found[2]},{found[3]}{right}"


def _range(answer: str, rng: random.Random) -> str | None:
    found = _PAIR.fullmatch(answer)
    if found is None or "infty" not in answer:
        return None
    low, high = found[2].strip(), found[3].strip()
    if "infty" in low and "infty" in high:
        return None
    end, sign = (
        (high, "<" if found[4] == ")" else "\\le") if "infty" in low else (low, ">" if found[1] == "(" else "\\ge")
    )
    other = {"<": (">", "\\le"), "\\le": ("\\ge", "<"), ">": ("<", "\\ge"), "\\ge": ("\\le", ">")}[sign]
    return f"x {rng.choice(other)} {end}"


def _scale(answer: str, rng: random.Random) -> str | None:
    for unit, other in _OTHER_UNITS.items():
        if re.search(rf"\{{[^{{}}]*\b{unit}\b", answer):
            return re.sub(rf"\b{unit}\b", other, answer)
    return None


def _base(answer: str, rng: random.Random) -> str | None:
    found = re.fullmatch(r"([0-9A-Z]+)_\{?(\d+)\}?", answer)
    return f"{found[1]}_{{{int(found[2]) + 1}}}" if found else None


def _factor(answer: str, rng: random.Random) -> str | None:
    if re.search(r"\\text|\\pm|[=<>,]|\\in|_", answer) or not re.search(r"\\pi|\\sqrt|[a-z]", answer):
        return None
    return rng.choice((f"2({answer})", f"\\frac{{{answer}}}{{2}}", f"{answer} \\cdot \\pi", f"({answer})/10"))


def _exponent(answer: str, rng: random.Random) -> str | None:
    places = list(_POWER.finditer(answer))
    if not places or "text" in answer or "=" in answer:
        return None
    found = rng.choice(places)
    changed = int(found[1] or found[2]) + rng.choice((-1, 1))
    return f"{answer[: found.start()]}^{{{changed}}}{answer[found.end() :]}"


def _turned_fraction(answer: str, rng: random.Random) -> str | None:
    found = re.search(r"\\frac\{(\d+)\}\{(\d+)\}", answer)
    if found is None or found[1] == found[2] or "=" in answer:
        return None
    return f"{answer[: found.start()]}\\frac{{{found[2]}}}{{{found[1]}}}{answer[found.end() :]}"


def _letter(answer: str, rng: random.Random) -> str | None:
    found = re.fullmatch(r"[^a-z\\=]*[xyznt][^a-z\\=]*", answer)
    return re.sub("[xyznt]", "w", answer) if found else None


def _part(answer: str, rng: random.Random) -> str | None:
    parts = answer.split(",")
    if len(parts) < 2 or re.search(r"[(\[{]|,\d{3}", answer):
        return None
    if rng.random() < 0.5:
        return ",".join(parts[:-1])
    return answer + ",17"


def _glued(answer: str, rng: random.Random) -> str | None:
    """A mixed number whose space is lost, or is read as a product."""
    found = _FRACTION.fullmatch(answer)
    if found is None or int(found[2]) <= int(found[3]):
        return None
    whole, rest = divmod(int(found[2]), int(found[3]))
    return found[1] + rng.choice(
        (f"{whole}{rest}/{found[3]}", f"{whole}*{rest}/{found[3]}", f"{whole} {rest + 1}/{found[3]}")
    )


def _unit(answer: str, rng: random.Random) -> str | None:
    if not re.fullmatch(r"-?\d+|-?\\frac\{\d+\}\{\d+\}|[^=<>,a-z]*\\(?:pi|sqrt)[^=<>,]*", answer) or "text" in answer:
        return None
    return answer + rng.choice(("\\%", " \\text{ thousands}", "m", "!", " \\text{ is wrong}", " i", "^2", " x"))


def _named(answer: str, rng: random.Random) -> str | None:
    if not re.fullmatch(r"-?\d+", answer):
        return None
    heads = ("\\text{not}", "\\text{41 or 43, or }", "2x", "-x", "x+1", "\\frac{a}{b}", "17")
    return f"{rng.choice(heads)} = {answer}"


CHANGES: dict[str, Callable[[str, random.Random], str | None]] = {
    "a number off by a little": _number,
    "the sign": _sign,
    "a sign inside": _inner_sign,
    "a term missing": _missing_term,
    "coordinates swapped": _swapped,
    "the ends of an interval": _ends,
    "another inequality": _range,
    "another unit scale": _scale,
    "another base": _base,
    "a factor": _factor,
    "an exponent": _exponent,
    "a fraction turned over": _turned_fraction,
    "another letter": _letter,
    "a part more or less": _part,
    "a mixed number misread": _glued,
    "something behind it": _unit,
    "no label": _named,
}


def plain(text: str) -> str:
    """The same in plain text."""
    text = re.sub(r"\\(pi|infty)(?![A-Za-z])", r" \1 ", re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", text))
    return re.sub(r"\^\{(\d+)\}", r"**\1", text)


def near_misses(answer: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """(kind, text): wrong answers that are near to an answer, in LaTeX or in plain text."""
    for kind, change in CHANGES.items():
        text = change(answer, rng)
        if text is not None and text != answer:
            yield kind, plain(text) if rng.random() < 0.3 else text


# ---------------------------------------------------------------- grading


async def grade(pairs: list[Pair]) -> list[float | None]:
    """The reward of each pair, in order; None where the grader failed."""
    async with SandboxPool((VERIFIER_FLAVOUR,)) as pool:
        judge, room = MathJudge(pool, wall_s=WALL_S), asyncio.Semaphore(AT_ONCE)

        async def score(truth: str, prediction: str) -> float | None:
            turn = Turn(start=0, end=1, text=f"<answer>\\boxed{{{prediction}}}</answer>", stopped=True)
            task = Task(id="", source="", question="", answer=truth)
            attempt = Attempt(task=task, turns=(turn,), is_truncated=False)
            async with room:
                outcome = await judge.score(attempt, deadline=None)
                if isinstance(outcome, Failed) and outcome.retryable:
                    outcome = await judge.score(attempt, deadline=None)
            return outcome.reward if isinstance(outcome, Scored) else None

        return await asyncio.gather(*(score(truth, prediction) for _, truth, prediction in pairs))


def answers_of(files: list[Path]) -> list[str]:
    """The distinct answers of the files, sorted."""
    rows = (json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return sorted({str(row["answer"]) for row in rows})


def pairs_of(answers: list[str], near: int, rewrite: int) -> tuple[list[Pair], list[Pair]]:
    """(rewritings, near misses) of the answers; at most `near` and, of each kind, `rewrite` of them."""
    rng = random.Random(SEED)
    by_kind: dict[str, list[Pair]] = defaultdict(list)
    for answer in answers:
        for kind, text in rewritings(answer):
            by_kind[kind].append((kind, answer, text))
    same = [pair for pairs in by_kind.values() for pair in rng.sample(pairs, min(rewrite, len(pairs)))]
    other: list[Pair] = []
    while len(other) < near:
        more = [(kind, answer, text) for answer in answers for kind, text in near_misses(answer, rng)]
        other += sorted(set(more) - set(other))
    return same, rng.sample(other, near)


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--near", type=int, default=10_000, help="near misses")
    parser.add_argument("--rewrite", type=int, default=10_000, help="rewritings of each kind, at most")
    options = parser.parse_args()
    same, other = pairs_of(answers_of(options.files), options.near, options.rewrite)
    rewards = asyncio.run(grade([*same, *other]))
    refused = [pair for pair, reward in zip(same, rewards, strict=False) if reward != 1]
    wrong = [pair for pair, reward in zip(other, rewards[len(same) :], strict=True) if reward == 1]
    failed = sum(reward is None for reward in rewards)
    share = 1 - len(refused) / len(same)
    claims = [
        claim("near misses of an answer that the judge accepts", len(wrong), "answers", at_most=0),
        claim("near misses that were graded", len(other), "answers"),
        claim("share of rewritten right answers that the judge accepts", share),
        claim("answers without a verdict of the judge", failed, "answers", at_most=0),
    ]
    counts = [Counter(kind for kind, *_ in some) for some in (same, other)]
    data = {"rewritings": counts[0], "near_misses": counts[1], "refused": refused[:20], "wrong": wrong}
    return finish("judge_on_answers", data, claims, options.out, seeds=[SEED])


if __name__ == "__main__":
    sys.exit(main())
