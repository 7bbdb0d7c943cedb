"""`rocstar data build`: what is left of real rows and why, and what made-up rows cost, more and more of them.

    python benchmarks/data_build.py --data FOLDER --out benchmarks/results/data_build.json
    python benchmarks/data_build.py --rows 100000 200000 400000 --out benchmarks/results/data_build_size.json

FOLDER has dapo_math_17k.jsonl, math_train.jsonl, gsm8k_train.jsonl, four evaluation sets, and conversations
in sft_toolcall.jsonl and sft_chat_instruct.jsonl. Tasks are built twice, the second time of the same rows in
another order, and conversations once, against three templates.

Made-up rows have about 60 words, in two sources: every fifth is a copy in other typesetting, every tenth has
no whole number as answer, every hundredth is one of 5,000 evaluation questions; of the second source a
quarter is drawn. Making them is not counted. The build of the middle size is killed twice and gone on with.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compact_results import compact
from decontamination_corpus import TAILS
from quickstart_seeds import machine

SETS = ("math500", "aime2024", "aime2025", "amc23")
TASKS = {"dapo": "dapo_math_17k", "math": "math_train", "gsm8k": "gsm8k_train"}
TALK = {"tools": "sft_toolcall", "chat": "sft_chat_instruct"}
QUESTIONS = 5_000
KILLED_AFTER = 0.35
"""Of the seconds that the whole build took; twice in a row."""


def sources(folder: Path, names: dict[str, str], more: str) -> str:
    return "".join(
        f'[[sources]]\nname = "{name}"\nsource = "{folder / file}.jsonl"\nlicence = "see the row"\n{more}\n'
        for name, file in names.items()
    )


def built(config: str, scratch: Path, name: str) -> dict[str, Any]:
    """Build in a process of its own: the funnel, its time and its highest memory."""
    file, out = scratch / f"{name}.toml", scratch / name
    file.write_text(config)
    cost = run_build(file, out)
    assert cost.pop("signal") == 0
    funnel = json.loads((out / "funnel.json").read_text())
    return {
        "read": sum(funnel["read"].values()),
        "kept": funnel["kept"],
        "kept_in_all": sum(funnel["kept"].values()),
        "dropped": {reason: sum(by.values()) for reason, by in funnel["dropped"].items()},
        **cost,
    }


def run_build(file: Path, out: Path, *, kill_after_s: float | None = None) -> dict[str, Any]:
    """The command in a process of its own: time, memory, and the signal that ended it, 0 for none."""
    program = "import sys; from rocstar.train.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "data", "build", str(file), "--out", str(out)]
    began = time.monotonic()
    child = os.posix_spawn(sys.executable, command, os.environ)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return {
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        "cpu_s": used.ru_utime + used.ru_stime,
        "wall_s": time.monotonic() - began,
        "peak_mb": used.ru_maxrss / 1024,
    }


def rows(path: Path) -> list[dict[str, Any]]:
    """What was written, without the hash of the files that it was read from."""
    found = [json.loads(line) for line in path.open()]
    for row in found:
        row.get("provenance", {}).pop("files", None)
    return found


def of_real_rows(data: Path) -> dict[str, Any]:
    """Tasks in two orders, and conversations."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        against = ", ".join(f'"{data / one}.jsonl"' for one in SETS)
        of_tasks = f'kind = "tasks"\n{{}}[overlap]\nagainst = [{against}]\n'
        tasks = built(of_tasks.format(sources(data, TASKS, 'question = "problem"')), scratch, "tasks")
        for file in TASKS.values():
            lines = (data / f"{file}.jsonl").read_text().splitlines(keepends=True)
            random.Random(1).shuffle(lines)
            (scratch / f"{file}.jsonl").write_text("".join(lines))
        built(of_tasks.format(sources(scratch, TASKS, 'question = "problem"')), scratch, "again")
        same = all(
            rows(scratch / "tasks" / file) == rows(scratch / "again" / file)
            for file in ("tasks.jsonl", "dropped.jsonl")
        )
        talk = 'kind = "conversations"\n' + sources(data, TALK, 'licence_field = "license"')
        talk += '[conversations]\ntemplates = ["rstar2", "qwen3", "compact"]\n'
        conversations = built(talk, scratch, "conversations")
    cpu_s = conversations["cpu_s"] * 10_000 / conversations["read"]
    return {
        "tasks": tasks | {"same_in_another_order": same},
        "conversations": conversations | {"cpu_s_for_10000": cpu_s},
    }


# ---- made-up rows ----


def made_up(folder: Path, number: int) -> Path:
    """Write so many rows, the questions, and the build of them; the build's file."""
    folder.mkdir()
    rng = random.Random(1)
    vocabulary = [
        f"{a}{b}" for a in "bcdfghklmnprstvw" for b in ("an", "el", "ir", "os", "ut", "ain", "ock", "end")
    ]
    sentences = [" ".join(rng.choices(vocabulary, k=12)) + f" ${rng.randrange(100)}$." for _ in range(20_000)]

    def problem() -> str:
        return " ".join(rng.choices(sentences, k=4)) + f" {rng.choice(TAILS)}"

    asked = [problem() for _ in range(QUESTIONS)]
    write_lines(folder / "questions.jsonl", ({"id": k, "question": text} for k, text in enumerate(asked)))
    for source in ("first", "second"):
        write_lines(folder / f"{source}.jsonl", _problems(rng, number // 2, asked, problem))
    file = folder / "build.toml"
    file.write_text(
        'kind = "tasks"\n'
        + sources(folder, {"first": "first"}, "")
        + sources(folder, {"second": "second"}, f"most = {number // 8}")
        + f'[overlap]\nagainst = ["{folder / "questions.jsonl"}"]\n'
    )
    return file


def _problems(rng: random.Random, number: int, asked: list[str], problem: Any) -> Iterator[dict[str, Any]]:
    before: list[tuple[str, int]] = []
    for k in range(number):
        if k % 5 == 4:
            text, answer = rng.choice(before)
            text = text.replace("$", "\\(", 1).replace("$", "\\)", 1) + " "
        else:
            text = rng.choice(asked) if k % 100 == 0 else problem()
            answer = rng.randrange(10_000)
            before = [*before[-999:], (text, answer)]
        yield {"id": k, "question": text, "answer": f"{answer}/7" if k % 10 == 3 else f"\\boxed{{{answer}}}"}


def write_lines(path: Path, found: Iterator[dict[str, Any]]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in found)


def at_size(number: int) -> dict[str, Any]:
    """What so many rows cost."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "rows"
        file = made_up(folder, number)
        found = built(file.read_text(), Path(name), "out")
    return {"rows": number, **found, "cpu_us_a_row": found["cpu_s"] / number * 1e6}


def killed_twice(number: int, wall_s: float) -> dict[str, Any]:
    """A build that is killed, gone on with, killed again and gone on with, beside one that is not."""
    with tempfile.TemporaryDirectory() as name:
        file = made_up(Path(name) / "rows", number)
        out, whole = Path(name) / "out", Path(name) / "whole"
        kills = [run_build(file, out, kill_after_s=KILLED_AFTER * wall_s) for _ in range(2)]
        was_finished = (out / "funnel.json").exists()
        gone_on = run_build(file, out)
        run_build(file, whole)
        names = sorted(path.name for path in whole.iterdir())
        same = names == sorted(path.name for path in out.iterdir()) and all(
            (out / one).read_bytes() == (whole / one).read_bytes() for one in names
        )
    return {
        "rows": number,
        "kills": kills,
        "was_finished_before_the_end": was_finished,
        "gone_on": gone_on,
        "same_bytes": same,
        "files": names,
    }


def of_made_up_rows(numbers: list[int]) -> dict[str, Any]:
    sizes = [at_size(number) for number in sorted(numbers)]
    middle = sizes[len(sizes) // 2]
    return {
        "questions": QUESTIONS,
        "sizes": sizes,
        "cost_of_a_row_largest_over_smallest": sizes[-1]["cpu_us_a_row"] / sizes[0]["cpu_us_a_row"],
        "memory_largest_over_smallest": sizes[-1]["peak_mb"] / sizes[0]["peak_mb"],
        "killed": killed_twice(middle["rows"], middle["wall_s"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="real rows")
    parser.add_argument("--rows", type=int, nargs="+", metavar="N", help="made-up rows of each build")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.data and not options.rows:
        parser.error("give --data, --rows, or both")
    command = "python benchmarks/data_build.py"
    found: dict[str, Any] = {}
    if options.data:
        command += " --data FOLDER"
        found |= of_real_rows(options.data.resolve())
    if options.rows:
        command += " --rows " + " ".join(map(str, options.rows))
        found |= of_made_up_rows(options.rows)
    load = float(Path("/proc/loadavg").read_text().split()[0])
    about = {"machine": machine(), "command": command, "load_of_the_machine": load}
    text = compact(json.loads(json.dumps(about | found)))
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
