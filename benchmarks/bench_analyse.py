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
from rocstar.engine.types import (
    FinishReason,
    Origin,
    Scored,
    Segment,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryKey,
    Turn,
    VersionSpan,
)
from rocstar.train.learner.checkpoint import full_weights, save_model
from rocstar.train.learner.scratch import build_model, train_tokenizer
from rocstar.train.recipe.load import load_recipe

ROOT = Path(__file__).parents[1]
TRAJECTORIES, TASKS, TURNS, PROMPT = 64, 16, 5, 200
CALL = '\n<tool_call>\n{"name": "python", "arguments": {"code": "print(1)"}}\n</tool_call>'
VERDICT = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=0.0)


def made(ids: np.ndarray, tokenizer, number: int, length: int) -> Trajectory:
    """A trajectory of real text: a prompt, then turns of the policy and answers of a tool in turn."""
    rng = np.random.default_rng(number)
    call = tokenizer.encode(CALL)
    at = int(rng.integers(len(ids) - length))
    row: list[int] = ids[at : at + PROMPT].tolist()
    segments, turns = [Segment(start=0, end=PROMPT, origin=Origin.prompt)], []
    each = (length - PROMPT) // TURNS
    for turn in range(TURNS):
        start, said = len(row), each * 4 // 5 - len(call)
        row += [*ids[at + start : at + start + said].tolist(), *call]
        segments.append(Segment(start=start, end=len(row), origin=Origin.policy))
        is_last = turn == TURNS - 1
        result = ToolResult(status="ok", is_error=turn % 3 == 1, text="1")
        turns.append(
            Turn(
                start=start,
                end=len(row),
                text="",
                stopped=True,
                calls=(ToolCall(name="python", arguments={"code": "1"}),),
                results=() if is_last else (result,),
            )
        )
        if not is_last:
            row += ids[at + len(row) : at + len(row) + each // 5].tolist()
            segments.append(Segment(start=segments[-1].end, end=len(row), origin=Origin.tool))
    mask = np.zeros(len(row), bool)
    for segment in segments:
        mask[segment.start : segment.end] = segment.origin is Origin.policy
    task = Task(id=f"t{number % TASKS}", source="made", question="What now?", answer="1")
    return Trajectory(
        key=TrajectoryKey(seed=0, step=1, task_id=task.id, sibling=number // TASKS),
        task=task,
        ids=row,
        logprobs=np.where(mask, np.float32(-1.0), np.float32(np.nan)).astype(np.float32),
        segments=tuple(segments),
        version_spans=(VersionSpan(start=0, end=len(row), version=0),),
        turns=tuple(turns),
        finish_reason=FinishReason.answered,
        outcome=Scored(reward=1.0, method="exact"),
    )


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
