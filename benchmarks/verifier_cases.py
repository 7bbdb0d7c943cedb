"""The judge against assertions of other graders' test suites.

    python benchmarks/verifier_cases.py CASES.jsonl [--out benchmarks/results/verifier_cases.json]

A case has `id`, `gold`, `prediction`, `expected` (true, false, or null: only that it ends), `category`, and
`grader_specific` where its label is the habit of one grader; those are counted apart. Cases are free text, so
what they box, or else write last in mathematics, is taken, else the whole; the verdict on it is the judge's
alone. Needs the verifier flavour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rocstar.engine.types import Attempt, Failed, Outcome, Task, Turn
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.train.tasks.grader import VERIFIER_FLAVOUR
from rocstar.train.tasks.latex import closing_brace
from rocstar.train.tasks.reward import MathJudge

BOX = "\\boxed{"
WALL_S = 6.0
NOT_EQUAL = {
    "vc-0264": "1 - 1/e is not 1 + 1/e: the suite asserts what its parser makes of \\mathrm{e}",
    "vc-0101": "'x = 5+5+1 = 1/3 \\approx 11' is a chain of different values",
    "vc-0115": "'z = 3+3 = 2' is a chain of different values",
    "vc-0035": "'1/2 = 10/9' is a chain of different values",
    "vc-0126": "0.0833333333333333 is near 1/12; an exact truth takes no decimal near it",
}
"""Labelled true, and not equal."""
REFUSED = {
    "vc-0030": "(9+1) for 10: a sum would be evaluated for the policy",
    "vc-0188": "sqrt(17) for a decimal: a root would be evaluated for the policy",
    "vc-0124": "I I for I: a product of matrices would be evaluated for the policy",
}
"""Equal, and not accepted on purpose."""
_MATHEMATICS = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|(?<!\\)\$((?:\\\$|[^$])+?)(?<!\\)\$|\\\(([^\n]+?)\\\)",
    re.DOTALL,
)
_BESIDE = re.compile(r"\s*(?:\\?%|percent|percentage|pct)", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def answer_in(text: str) -> str:
    """What a free text gives as its answer: its boxes, else the number behind its last mathematics, else its
    last mathematics, else all of it.
    """
    if "\\\\" in text and "matrix" not in text:  # backslashes escaped once too often
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text).replace("\\n\\n", "\n")
    text = text.removesuffix("<|im_start|>user").strip().removesuffix("I hope it is correct.").rstrip(" \\")
    final = text.rpartition("Final Answer:")[2]
    if boxes := _boxes(final):
        return boxes
    found = list(_MATHEMATICS.finditer(final))
    behind = final[found[-1].end() :] if found else final
    numbers = _NUMBER.findall(behind.rpartition(" is ")[2])
    is_told = bool(found) or final != text
    if len(numbers) == 1 and (" is " in behind or (is_told and len(behind.split()) > 3)):
        return str(numbers[0])
    if not found:
        return final
    inside = next(group for group in found[-1].groups() if group is not None)
    beside = _BESIDE.match(behind)
    whole = len(found) > 1 and not re.search(r"[A-Za-z]{4,}", _MATHEMATICS.sub("", final))
    return final if whole else inside + (beside[0] if beside else "")


def _boxes(text: str) -> str:
    """The last boxes of a text, with what stands between them if that joins; of one, its percent sign."""
    spans: list[tuple[int, int]] = []
    at = 0
    while (at := text.find(BOX, at)) >= 0:
        end = closing_brace(text, at + len(BOX) - 1)
        end = len(text) if end is None else end
        if not spans or not text[at + len(BOX) : end].startswith(BOX):
            spans.append((at, end))
        at += len(BOX)
    if not spans:
        return ""
    run = [spans[-1]]
    for start, end in reversed(spans[:-1]):
        between = text[end + 1 : run[0][0]]
        joins = re.search(r"\b(?:and|or)\b|,", between)
        if len(between) > 40 or not joins or re.search(r"[A-Za-z]{7,}", between):
            break
        run.insert(0, (start, end))
    inside = [text[start + len(BOX) : end] for start, end in run]
    beside = _BESIDE.match(text[run[-1][1] + 1 :].lstrip("$"))
    return ", ".join(inside) + (" " + beside[0] if beside else "")


async def grade(cases: list[dict[str, Any]]) -> list[tuple[Outcome, float]]:
    """Each case's outcome and the seconds that it took, one after the other."""
    graded = []
    async with SandboxPool((VERIFIER_FLAVOUR,)) as pool:
        judge = MathJudge(pool, wall_s=WALL_S)
        for case in cases:
            answer = answer_in(str(case["prediction"] or ""))
            text = f"<answer>\\boxed{{{answer}}}</answer>"
            turn = Turn(start=0, end=1, text=text, stopped=True)
            task = Task(id=case["id"], source="", question="", answer=answer_in(str(case["gold"])))
            began = time.perf_counter()
            outcome = await judge.score(Attempt(task=task, turns=(turn,), is_truncated=False), deadline=None)
            graded.append((outcome, time.perf_counter() - began))
    return graded


def summary(cases: list[dict[str, Any]], graded: list[tuple[Outcome, float]]) -> dict[str, Any]:
    """Counts, and every case that differs from its label with the reason."""
    rewards = {
        case["id"]: None if isinstance(outcome, Failed) else outcome.reward
        for case, (outcome, _) in zip(cases, graded, strict=True)
    }
    own = [case for case in cases if not case.get("grader_specific")]
    true = [case["id"] for case in own if case["expected"] is True]
    false = [case["id"] for case in own if case["expected"] is False]
    specific = [case for case in cases if case.get("grader_specific")]
    accepted = [name for name in true if rewards[name] == 1]
    equal = [name for name in true if name not in NOT_EQUAL]
    missed = [name for name in true if rewards[name] != 1]
    return {
        "cases": len(own),
        "false_pairs": len(false),
        "false_accepts": [name for name in false if rewards[name] == 1],
        "true_pairs": len(true),
        "accepted": len(accepted),
        "accepted_share": round(len(accepted) / len(true), 4),
        "equal_pairs": len(equal),
        "equal_accepted": sum(rewards[name] == 1 for name in equal),
        "equal_accepted_share": round(sum(rewards[name] == 1 for name in equal) / len(equal), 4),
        "not_accepted": {name: NOT_EQUAL.get(name) or REFUSED.get(name, "?") for name in missed},
        "failed": [name for name, reward in rewards.items() if reward is None],
        "slowest_s": round(max(seconds for _, seconds in graded), 2),
        "wall_s": WALL_S,
        "methods": dict(Counter(o.kind if isinstance(o, Failed) else o.method for o, _ in graded)),
        "grader_specific": {
            "cases": len(specific),
            "agree": sum(rewards[case["id"]] == float(case["expected"]) for case in specific),
        },
    }


def main() -> None:
    """Grade the file and print, or write, the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--verbose", action="store_true", help="print every case that differs from its label")
    options = parser.parse_args()
    cases = [json.loads(line) for line in options.cases.read_text().splitlines()]
    graded = asyncio.run(grade(cases))
    if options.verbose:
        for case, (outcome, _) in zip(cases, graded, strict=True):
            reward = None if isinstance(outcome, Failed) else bool(outcome.reward)
            if case["expected"] is not None and reward is not case["expected"]:
                mark = "specific" if case.get("grader_specific") else "OWN"
                given = (answer_in(str(case["gold"]))[:90], answer_in(str(case["prediction"]))[:90])
                print(mark, case["id"], case["expected"], given, outcome)
    result = summary(cases, graded)
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
