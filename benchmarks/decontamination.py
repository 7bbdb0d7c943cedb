"""`rocstar data check` on texts whose answer is known, and its cost for many problems.

    python benchmarks/decontamination.py [--problems 1000000] [--data FOLDER]
        [--out benchmarks/results/decontamination.json]

Questions of benchmarks/decontamination_corpus.py are copied into problems in six ways, some of them several
times with other random choices; HEADS x TAILS are hard negatives. The plain rule of any 8 words stands beside
it. With a folder that has dapo_math_17k.jsonl and four evaluation sets, these are checked too; rows of DAPO
there may be marked `eval_overlap`, and `lang`. Then `rocstar data check` judges `--problems` made-up problems
against 10,000 made-up questions, for time and memory; and again, killed half-way and gone on with.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from decontamination_corpus import HEADS, LONG, MIDDLE, SHORT, TAILS
from quickstart_seeds import machine

from rocstar.train.data.check import check_tasks
from rocstar.train.data.overlap import EvalQuestion, OverlapCheck, judged
from rocstar.train.data.paper_rule import PaperCheck
from rocstar.train.data.words import words_of

TIMES = 8
"""Random copies of a question."""
FOUND = ("duplicate", "near")


def questions() -> list[str]:
    """Every question, some of the long ones with the usual ending."""
    ended = [f"{text} {TAILS[k % len(TAILS)]}" if k % 2 else text for k, text in enumerate(LONG)]
    return [*ended, *MIDDLE, *SHORT]


def respaced(text: str, rng: random.Random) -> str:
    """Other delimiters, spacing, markdown and a line break: the same words."""
    opened, closed = rng.choice([("\\(", "\\)"), ("$$", "$$"), ("", ""), ("\\[", "\\]")])
    text = re.sub(r"\$([^$]*)\$", lambda found: f"{opened} {_spaced(found[1])} {closed}", text)
    words = text.split(" ")
    words[rng.randrange(len(words))] += rng.choice(["\n", "  ", "\t"])
    text = " ".join(words).replace("\\frac", rng.choice(["\\frac", "\\dfrac", "\\tfrac"]))
    return rng.choice([text, f"**{text}**", f"> {text}", text.upper() if "\\" not in text else text])


def _spaced(formula: str) -> str:
    return re.sub(r"(?<=[-+=<>*^])|(?=[-+=<>*^])", " ", formula)


def edited(text: str, rng: random.Random) -> str:
    """One word replaced, left out or put in, and none of digits."""
    words = text.split(" ")
    places = [k for k, word in enumerate(words) if word.isalpha()] or [0]
    k = rng.choice(places)
    other = rng.choice(["certain", "given", "usually", "herself", "altogether", "nearby"])
    changed = [
        [*words[:k], other, *words[k + 1 :]],
        words[:k] + words[k + 1 :],
        [*words[:k], other, *words[k:]],
    ]
    return " ".join(rng.choice(changed))


def renumbered(text: str, rng: random.Random) -> str:
    """Every number another one."""
    return re.sub(r"\d+", lambda found: str(int(found[0]) + rng.randrange(1, 90)), text)


def thinned(text: str, rng: random.Random) -> str:
    """Every seventh word left out."""
    first = rng.randrange(7)
    return " ".join(word for k, word in enumerate(text.split(" ")) if k % 7 != first)


def embedded(text: str, rng: random.Random) -> str:
    """Verbatim, between instructions."""
    return f"Solve the following problem step by step.\n\n{text}\n\nPut your answer into a box."


KINDS: dict[str, tuple[Callable[[str, random.Random], str], Callable[[str], bool]]] = {
    "verbatim": (lambda text, rng: text, lambda text: True),
    "between instructions": (embedded, lambda text: len(text.split()) >= 8),
    "respaced": (respaced, lambda text: True),
    "one edit": (edited, lambda text: len(text.split()) >= 8),
    "all numbers changed": (renumbered, lambda text: bool(re.search(r"\d", text))),
    "every 7th word dropped": (thinned, lambda text: len(text.split()) >= 8),
}
"""How a question is copied, and which questions are."""


def copies() -> Iterator[tuple[str, str]]:
    """Kind and text of every problem that is a question, and of every hard negative."""
    rng = random.Random(18)
    for kind, (change, fits) in KINDS.items():
        for text in filter(fits, questions()):
            for _ in range(1 if kind in ("verbatim", "between instructions") else TIMES):
                yield kind, change(text, rng)
    for head in HEADS:
        for tail in TAILS:
            yield "hard negative", f"{head} {tail}"


def levels(check: Any, texts: Sequence[str]) -> list[str]:
    return [found.level for found in judged(check, texts)]


def quality() -> dict[str, Any]:
    """Share of each kind that is told as it should be, of ours and of the plain rule.

    A set of problems has a question once: each copy is judged among the hard negatives, beside other kinds,
    and copies of one question among themselves count as the variants that they are.
    """
    asked = [EvalQuestion(file="corpus", id=str(k), text=text) for k, text in enumerate(questions())]
    problems = list(copies())
    found: dict[str, Any] = {}
    for name, make in (("ours", OverlapCheck), ("any 8 words", PaperCheck)):
        told = _one_copy_at_a_time(make, asked, problems)
        shares: dict[str, float] = {}
        for kind in (*KINDS, "hard negative"):
            of_kind = [level for (k, _), level in zip(problems, told, strict=True) if k == kind]
            wanted = ("twin",) if kind == "all numbers changed" and name == "ours" else FOUND
            shares[kind] = sum(level in wanted for level in of_kind) / len(of_kind)
        right = sum(
            level in FOUND
            for (k, _), level in zip(problems, told, strict=True)
            if k in ("verbatim", "respaced")
        )
        wrong = sum(
            level in FOUND for (k, _), level in zip(problems, told, strict=True) if k == "hard negative"
        )
        negatives = sum(kind == "hard negative" for kind, _ in problems)
        found[name] = {
            "found": shares,
            "flagged_negatives": wrong,
            "negatives": negatives,
            "precision": right / max(1, right + wrong),
        }
    return found | {"questions": len(asked), "problems": len(problems)}


def _one_copy_at_a_time(
    make: Any, asked: Sequence[EvalQuestion], problems: Sequence[tuple[str, str]]
) -> list[str]:
    """Levels of the problems: round k has the k-th copy of every question in each kind, and all negatives."""
    negatives = [text for kind, text in problems if kind == "hard negative"]
    told: list[str | None] = [None] * len(problems)
    for kind in KINDS:
        places = [k for k, (each, _) in enumerate(problems) if each == kind]
        rounds = TIMES if kind not in ("verbatim", "between instructions") else 1
        for turn in range(rounds):
            chosen = places[turn::rounds]
            for place, level in zip(
                chosen, levels(make(asked), [*(problems[k][1] for k in chosen), *negatives]), strict=False
            ):
                told[place] = level
    alone = levels(make(asked), negatives)
    told[len(problems) - len(negatives) :] = alone
    return [level or "" for level in told]


def cost(num_problems: int, num_questions: int = 10_000) -> dict[str, Any]:
    """Time and memory of the command for made-up problems of about 60 words, one in a hundred a question.

    Making them is not counted; reading and writing the files is.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _write_made_up(folder, num_problems, num_questions)
        whole = _checked(folder, "whole.jsonl")
        killed = _checked(folder, "killed.jsonl", kill_after_s=whole["wall_s"] / 2)
        gone_on = _checked(folder, "killed.jsonl")
        same = (folder / "whole.jsonl").read_bytes() == (folder / "killed.jsonl").read_bytes()
        levels = Counter(json.loads(line)["level"] for line in (folder / "whole.jsonl").open())
    return {
        "problems": num_problems,
        "questions": num_questions,
        **whole,
        "flagged": sum(levels.values()) - levels["clean"],
        "killed": {
            "after_s": killed["wall_s"],
            "left_work_mb": killed["work_mb"],
            "signal": killed["signal"],
        },
        "gone_on": gone_on,
        "same_bytes": same,
    }


def _write_made_up(folder: Path, num_problems: int, num_questions: int) -> None:
    rng = random.Random(1)
    vocabulary = [
        f"{a}{b}" for a in "bcdfghklmnprstvw" for b in ("an", "el", "ir", "os", "ut", "ain", "ock", "end")
    ]
    sentences = [" ".join(rng.choices(vocabulary, k=12)) + f" ${rng.randrange(100)}$." for _ in range(20_000)]

    def made() -> str:
        return " ".join(rng.choices(sentences, k=4)) + f" {rng.choice(TAILS)}"

    asked = [made() for _ in range(num_questions)]
    with (folder / "questions.jsonl").open("w") as file:
        file.writelines(json.dumps({"id": k, "question": text}) + "\n" for k, text in enumerate(asked))
    with (folder / "tasks.jsonl").open("w") as file:
        for k in range(num_problems):
            text = rng.choice(asked) if k % 100 == 0 else made()
            file.write(json.dumps({"id": k, "question": text}) + "\n")


def _checked(folder: Path, out: str, kill_after_s: float | None = None) -> dict[str, Any]:
    """Run the command in a process of its own; its time and memory, and what it left if it was killed."""
    program = "import sys; from rocstar.train.cli import main; sys.exit(main())"
    names = [str(folder / name) for name in ("tasks.jsonl", "questions.jsonl", out)]
    command = [
        sys.executable,
        "-c",
        program,
        "data",
        "check",
        names[0],
        "--against",
        names[1],
        "--out",
        names[2],
    ]
    began = time.monotonic()
    child = os.posix_spawn(sys.executable, command, os.environ)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    work = folder / f"{out}.work"
    return {
        "wall_s": time.monotonic() - began,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        "work_mb": work.stat().st_size / 2**20 if work.exists() else 0.0,
    }


SETS = ("math500", "aime2024", "aime2025", "amc23")


def dapo(folder: Path) -> dict[str, Any]:
    """What of DAPO is in the sets: counts, marked rows, and the ids of those that were not marked."""
    tasks = [json.loads(line) for line in (folder / "dapo_math_17k.jsonl").read_text().splitlines()]
    with tempfile.TemporaryDirectory() as scratch:
        out, against = Path(scratch) / "out.jsonl", [str(folder / f"{name}.jsonl") for name in SETS]
        check_tasks(str(folder / "dapo_math_17k.jsonl"), against, out, force=False)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    english = [row["level"] for task, row in zip(tasks, rows, strict=True) if task.get("lang") == "en"]
    marked = [(t, row["level"]) for t, row in zip(tasks, rows, strict=True) if t.get("eval_overlap")]
    known = {task["id"] for task, _ in marked}
    flagged = [row for row in rows if row["level"] != "clean" and row["id"] not in known]
    asked = {row["id"]: row for name in SETS for row in map(json.loads, (folder / f"{name}.jsonl").open())}
    return {
        "english": len(english),
        "english_flagged": sum(level in FOUND for level in english) / len(english),
        "english_flagged_or_twins": sum(level != "clean" for level in english) / len(english),
        "levels": Counter(row["level"] for row in rows),
        "marked": Counter(level for _, level in marked),
        "marked_but_clean": [
            _what_they_share(task, asked[task["eval_overlap"]], tasks)
            for task, level in marked
            if level == "clean"
        ],
        "not_marked": [
            {"id": row["id"], "level": row["level"], "score": row["score"], **row["against"]}
            for row in flagged
        ],
    }


def _what_they_share(
    task: dict[str, Any], question: dict[str, Any], tasks: list[dict[str, Any]]
) -> dict[str, Any]:
    """The longest words that a marked task and the question of its mark share, and how many have them."""
    ours, theirs = words_of(task["problem"]), words_of(question["problem"])
    match = SequenceMatcher(None, ours, theirs, autojunk=False).find_longest_match()
    shared = " ".join(ours[match.a : match.a + match.size])
    others = sum(f" {shared} " in f" {' '.join(words_of(each['problem']))} " for each in tasks)
    return {
        "id": task["id"],
        "marked_as": question["id"],
        "answers": [task["answer"], question["answer"]],
        "shared": shared,
        "of_words": len(theirs),
        "tasks_with_it": others,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="`rocstar data check` on texts whose answer is known.")
    parser.add_argument("--problems", type=int, default=1_000_000)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    command = f"python benchmarks/decontamination.py --problems {options.problems}"
    found = {"machine": machine(), "command": command} | quality()
    if options.data:
        found["dapo"] = dapo(options.data)
    found["cost"] = cost(options.problems)
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
