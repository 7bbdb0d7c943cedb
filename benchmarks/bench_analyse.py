"""How long `rocstar analyse` takes: 64 made trajectories of up to 8,192 tokens under the quickstart's model.

    python benchmarks/bench_analyse.py --out benchmarks/results/analyse_speed.json

The model has the quickstart's shape and random weights, which costs what trained ones do; the text is this
repository's, in turns that call a tool and are answered. Each size is analysed in a process of its own, from
records on the disk to the page: wall, CPU and the largest resident set, start and imports included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rocstar.engine.chat.chat import load_template
from rocstar.engine.record.plain import Verdict, to_record
from rocstar.engine.record.reading import write_records
from rocstar.engine.types import Task, ToolCall, ToolResult, Trajectory
from rocstar.train.learner.checkpoint import full_weights, save_model
from rocstar.train.learner.scratch import build_model, train_tokenizer
from rocstar.train.recipe.load import load_recipe

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))
from tests.engine.made_trajectories import MadeTurn, spoken_trajectory  # noqa: E402

TRAJECTORIES, TASKS, TURNS, PROMPT = 64, 16, 5, 200
CALL = '\n<tool_call>\n{"name": "python", "arguments": {"code": "print(1)"}}\n</tool_call>'
VERDICT = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=0.0)


def made(ids: np.ndarray, tokenizer, number: int, length: int) -> Trajectory:
    """A trajectory of real text: a prompt, then turns of the policy and answers of a tool in turn."""
    rng = np.random.default_rng(number)
    call = ToolCall(name="python", arguments={"code": "1"})
    written = tokenizer.encode(CALL)
    at = int(rng.integers(len(ids) - length))
    prompt, at = ids[at : at + PROMPT], at + PROMPT
    each = (length - PROMPT) // TURNS
    said, heard = each * 4 // 5 - len(written), each // 5
    turns = []
    for turn in range(TURNS):
        is_last = turn == TURNS - 1
        row = [*ids[at : at + said].tolist(), *written]
        result = ToolResult(status="ok", is_error=turn % 3 == 1, text="1")
        turns.append(
            MadeTurn(
                ids=row,
                logprobs=[-1.0] * len(row),
                calls=(call,),
                results=() if is_last else (result,),
                answer=[] if is_last else ids[at + said : at + said + heard].tolist(),
            )
        )
        at += said + heard
    task = Task(id=f"t{number % TASKS}", source="made", question="What now?", answer="1")
    return spoken_trajectory(prompt, turns, task=task, sibling=number // TASKS)


def prepared(folder: Path, lengths: Sequence[int]) -> Path:
    """A model, and a file of records for each length."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    scratch = load_recipe("quickstart").model.scratch
    tokenizer = train_tokenizer(texts, vocab_size=scratch.vocab_size, template=load_template("compact", None))
    model = build_model(scratch, len(tokenizer), seed=0)
    save_model(folder / "model", model, full_weights(model), tokenizer)
    ids = np.concatenate([np.asarray(tokenizer.encode(text), np.int64) for text in texts])
    for length in lengths:
        rows = (made(ids, tokenizer, number, length) for number in range(TRAJECTORIES))
        records = (
            to_record(row, VERDICT, stage="made", num_answers=0, decode=tokenizer.decode) for row in rows
        )
        write_records(folder / f"length_{length}.jsonl", records)
    return folder / "model"


def timed(folder: Path, model: Path, length: int) -> dict:
    program = "import sys; from rocstar.train.cli import main; sys.exit(main())"
    file = folder / f"length_{length}.jsonl"
    command = [sys.executable, "-c", program, "analyse", str(file), f"--checkpoint={model}", "--json"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = json.loads(done.stdout)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "length": length,
        "trajectories": told["trajectories"],
        "policy_tokens": told["tokens"],
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "peak_mb": after.ru_maxrss / 1024,
        "page_kb": Path(told["page"]).stat().st_size / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 8192])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "analyse_speed.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = prepared(folder, options.lengths)
        cases = [timed(folder, model, length) for length in sorted(options.lengths)]
    load = Path("/proc/loadavg").read_text().split()[0]
    told = {"command": " ".join(["python", *sys.argv]), "load_of_the_machine": float(load), "cases": cases}
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
