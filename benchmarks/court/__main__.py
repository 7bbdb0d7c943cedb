"""The court: arms at equal cost, decided over seeds by a rule that is written before the first run.

    python -m benchmarks.court QUESTION.toml --runs DIR [--at-once 2] [--seeds 4] [--out FILE]
    python -m benchmarks.court QUESTION.toml --simulate [--out FILE]

A killed court goes on where it stopped, as does one with --seeds. A question whose file or recipe has changed since
its first run is refused.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.report import result_parser
from rocstar.sandbox.command_line import number_option
from rocstar.train.recipe.errors import ConfigError

from . import trainer
from .curves import Curve
from .decision import Decision
from .question import MOST_SEEDS, Question, read_question
from .runs import Runs, Train, commits
from .simulation import simulate
from .verdicts import judged, outcomes, publish, table


def main(train: Train = trainer.train) -> int:
    parser = result_parser(__doc__)
    parser.add_argument("question", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/court"))
    parser.add_argument("--at-once", type=int, default=1, help="runs at a time, one thread each")
    seeds = number_option(1, MOST_SEEDS, f"a number of seeds, 1 to {MOST_SEEDS}")
    text = "number of seeds of every arm, also after its verdict; without it, until each arm is decided"
    parser.add_argument("--seeds", type=seeds, help=text)
    parser.add_argument("--commit", default="unknown", help="of a tree without git; `-dirty` at its end")
    parser.add_argument("--simulate", action="store_true", help="the rule alone: false findings and power")
    options = parser.parse_args()
    try:
        question, digest = read_question(options.question)
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.simulate:
        return simulate(options.question.stem, question, options.out)
    file = options.runs / options.question.stem / "question.json"
    written: dict[str, Any] = {"sha256": digest, "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    if file.exists():
        written = json.loads(file.read_text())
        if written["sha256"] != digest:
            print(f"{options.question} was {written['sha256'][:12]} at its first run and is {digest[:12]} now; "
                  "give the changed question another file name", file=sys.stderr)  # fmt: skip
            return 2
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(written))
    with Runs(question, options.question, options.runs, options.at_once, train) as runs:
        curves, decisions = hold(question, runs, options.seeds)
    print(table(question, curves, decisions))
    written["commits"] = commits(file.parent, options.commit)
    return publish(options.question.stem, question, written, curves, decisions, options.out)


def hold(question: Question, runs: Runs, number: int | None) -> tuple[dict[str, list[Curve]], dict[str, Decision]]:
    """Run the arms seed by seed. Return curves and decisions by arm.
    number: seeds of each arm; None: until the arm is decided or the looks end."""
    curves: dict[str, list[Curve]] = {arm: [] for arm in question.arms}
    decisions: dict[str, Decision] = {}
    open_arms = list(question.arms)
    for look in question.stopping.looks if number is None else [number]:
        seeds = range(len(curves[question.control]), look)
        failures: list[SystemExit] = []
        for arm, future in runs.start(open_arms, seeds):
            try:
                curves[arm].append(future.result())
            except SystemExit as failure:  # the other runs go on: their curves are kept
                failures.append(failure)
                continue
            print(f"{arm} seed {len(curves[arm]) - 1}: {outcomes(question, curves[arm][-1:])[0]:.3f}", flush=True)
        if failures:
            raise failures[0]
        for arm in open_arms[1:]:
            decisions[arm] = judged(question, curves, arm)
        open_arms = [a for a in open_arms if a == question.control or decisions[a].verdict == "undecided"]
        if len(open_arms) == 1:
            break
    return curves, decisions


if __name__ == "__main__":
    sys.exit(main())
