"""`rocstar data build` on real rows: what is left of them and why, in what time and memory.

    python benchmarks/data_build.py --data FOLDER [--out benchmarks/results/data_build.json]

FOLDER has dapo_math_17k.jsonl, math_train.jsonl, gsm8k_train.jsonl, four evaluation sets, and conversations
in sft_toolcall.jsonl and sft_chat_instruct.jsonl. Tasks are built twice, the second time of the same rows in
another order, and conversations once, against three templates.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from quickstart_seeds import machine

SETS = ("math500", "aime2024", "aime2025", "amc23")
TASKS = {"dapo": "dapo_math_17k", "math": "math_train", "gsm8k": "gsm8k_train"}
TALK = {"tools": "sft_toolcall", "chat": "sft_chat_instruct"}


def sources(folder: Path, names: dict[str, str], more: str) -> str:
    return "".join(
        f'[[sources]]\nname = "{name}"\nsource = "{folder / file}.jsonl"\nlicence = "see the row"\n{more}\n'
        for name, file in names.items()
    )


def built(config: str, scratch: Path, name: str) -> dict[str, Any]:
    """Build in a process of its own: the funnel, its time and its highest memory."""
    file, out = scratch / f"{name}.toml", scratch / name
    file.write_text(config)
    program = "import sys; from rocstar.train.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "data", "build", str(file), "--out", str(out)]
    began = time.monotonic()
    _, status, used = os.wait4(os.posix_spawn(sys.executable, command, os.environ), 0)
    assert status == 0
    funnel = json.loads((out / "funnel.json").read_text())
    return {
        "read": sum(funnel["read"].values()),
        "kept": funnel["kept"],
        "kept_in_all": sum(funnel["kept"].values()),
        "dropped": {reason: sum(by.values()) for reason, by in funnel["dropped"].items()},
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


def main() -> None:
    parser = argparse.ArgumentParser(description="`rocstar data build` on real rows.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = options.data.resolve()
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
    found = {
        "machine": machine(),
        "command": "python benchmarks/data_build.py --data FOLDER",
        "tasks": tasks | {"same_in_another_order": same},
        "conversations": conversations
        | {"cpu_s_for_10000": conversations["cpu_s"] * 10_000 / conversations["read"]},
    }
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
