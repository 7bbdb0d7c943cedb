"""Drafts from siblings in the embedded engine: generated tokens per CPU second with and without.

    make quickstart OUTPUT=runs/drafts && taskset -c 1 python benchmarks/bench_drafts.py runs/drafts

The rollouts of a run's last step again, from its last checkpoint: the recorded contexts, turn by turn, with the
recorded seeds and stop ids. Rows side by side: all, and 64, 16, 4 and 1. A random model of bench_embedded.py, whose
siblings have little in common, shows what drafts cost where they gain nothing. --large adds a run of a larger model,
of benchmarks/court/smollm2.toml. CPU seconds are those of the engine's thread, the least of the rounds: other work on
the machine only adds to it. Both sides in turn, after a round that is not counted. Tokens must be the same on both
sides; the result has the largest difference of two log-probs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from bench_embedded import scripts, tiny_model
from report import claim, finish, result_parser

from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.engine.record.reading import read_records
from rocstar.engine.seeds import stream_of
from rocstar.engine.types import TrajectoryKey
from rocstar.train.learner.model_io import load_model

SPEED_BAR, LEAST = 1.5, 0.98
TASKS = {384: 12, 64: 12, 16: 6, 4: 2, 1: 1}
"""Tasks of the run, by the rows side by side."""
LARGE_TASKS, LARGE_ROUNDS = {48: 4, 12: 1}, 2
APART = 1e-5

Turn = tuple[list[int], int, frozenset[int]]
"""Context, most tokens, stop ids."""
Work = dict[str, tuple[int, list[Turn]]]
"""By trajectory: its seed and turns."""


def recorded(run: Path, num_tasks: int) -> Work:
    """The rollouts of the last step, of its first tasks."""
    work: Work = {}
    tasks: dict[str, None] = {}
    for record in read_records(sorted((run / "trajectories").glob("*.columns"))[-1]):
        tasks.setdefault(record["task"]["id"])
        if len(tasks) > num_tasks:
            break
        seed, step, sibling = record["seed"]
        key = TrajectoryKey(seed=seed, step=step, task_id=record["task"]["id"], sibling=sibling)
        ids, spans = record["ids"], [s for s in record["segments"] if s["origin"] == "policy"]
        turns = [(ids[: s["start"]], 160, frozenset({2})) for s in spans]
        work[record["id"]] = (stream_of(key), turns)
    return work


def random_work(siblings: int) -> Work:
    made = scripts(siblings * 2, siblings, 0)
    return {f"s0/t{k // siblings}/{k % siblings}": (k, [(s.prompt, 60, frozenset[int]())]) for k, s in enumerate(made)}


class Side:
    """An engine with or without drafts."""

    def __init__(self, model: Any, rows: int, drafts: int) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(torch.set_num_threads, 1).result()
        self._model, self._rows, self._drafts = model, rows, drafts

    def run(self, work: Work) -> tuple[float, dict[str, Any]]:
        """Engine's CPU seconds, and what each trajectory said."""
        before = self._thread.submit(time.thread_time).result()
        said = asyncio.run(self._all(work))
        return self._thread.submit(time.thread_time).result() - before, said

    async def _all(self, work: Work) -> dict[str, Any]:
        said: dict[str, Any] = {name: [] for name in work}
        room = asyncio.Semaphore(self._rows)
        engine = EmbeddedEngine(self._model, max_running=self._rows, thread=self._thread, drafts=self._drafts)

        async def one(name: str, seed: int, turns: list[Turn]) -> None:
            async with room:
                for ids, most, stop_ids in turns:
                    got = await engine.generate(
                        ids,
                        max_new_tokens=most,
                        stop_ids=stop_ids,
                        sampling=Sampling(),
                        seed=seed,
                        request_id=name,
                        deadline=None,
                    )
                    said[name].append((got.ids, got.logprobs))
                engine.release(name)

        async with engine, asyncio.TaskGroup() as group:
            for name, (seed, turns) in work.items():
                group.create_task(one(name, seed, turns))
        return said


def compare(model: Any, work: Work, rows: int, options: argparse.Namespace, rounds: int) -> dict[str, float]:
    """Tokens per CPU second on both sides. ValueError: the tokens differ."""
    sides = [Side(model, rows, most) for most in (0, options.drafts)]
    seconds: list[list[float]] = [[], []]
    apart = 0.0
    for number in range(rounds + 1):
        said = [{}, {}]
        for k in (0, 1) if number % 2 else (1, 0):
            took_s, said[k] = sides[k].run(work)
            seconds[k] += [took_s] if number else []
        apart = max(apart, difference(*said))
    tokens = sum(len(ids) for turns in said[0].values() for ids, _ in turns)
    plain, drafted = (tokens / min(of_side) for of_side in seconds)
    return {
        "rows": rows,
        "tokens": tokens,
        "plain": plain,
        "drafted": drafted,
        "ratio": drafted / plain,
        "apart": apart,
    }


def difference(plain: dict[str, Any], drafted: dict[str, Any]) -> float:
    """The largest difference of two log-probs. ValueError: the tokens differ."""

    def column(said: dict[str, Any], which: int) -> list[Any]:
        return [one for turns in said.values() for turn in turns for one in turn[which]]

    if column(plain, 0) != column(drafted, 0):
        raise ValueError("tokens differ with drafts")
    return max(abs(a - b) for a, b in zip(column(plain, 1), column(drafted, 1), strict=True))


def last_checkpoint(run: Path) -> Any:
    """The model of a run's last checkpoint, in float32."""
    checkpoint = max((run / "checkpoints").glob("step_*"), key=lambda path: int(path.name.split("_")[1]))
    return load_model(str(checkpoint), "float32")


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("run", type=Path, help="a run of recipes/quickstart.toml")
    parser.add_argument("--large", type=Path, help="a run of a larger model")
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trained = last_checkpoint(options.run)
    found = []
    for rows, tasks in TASKS.items():
        found.append(
            {"model": "trained"} | compare(trained, recorded(options.run, tasks), rows, options, options.rounds)
        )
        print(found[-1], flush=True)
    for rows in list(TASKS)[1:]:
        found.append(
            {"model": "random"} | compare(tiny_model(), random_work(max(2, rows // 2)), rows, options, options.rounds)
        )
        print(found[-1], flush=True)
    ratios, apart = [one["ratio"] for one in found], max(one["apart"] for one in found)
    large = last_checkpoint(options.large) if options.large else None
    for rows, tasks in LARGE_TASKS.items() if large else ():
        work = dict(list(recorded(options.large, tasks).items())[:rows])
        found.append({"model": "large"} | compare(large, work, rows, options, LARGE_ROUNDS))
        print(found[-1], flush=True)
    what = "tokens per CPU second of the engine with drafts over without"
    claims = [
        claim(f"{what}, a step of the quickstart", ratios[0], at_least=SPEED_BAR),
        claim(f"{what}, the least of all cases", min(ratios), at_least=LEAST),
        claim("largest difference of two log-probs with and without drafts", apart, at_most=0),
        *(
            claim(
                f"largest difference of two log-probs, a larger model, {one['rows']:.0f} rows",
                one["apart"],
                at_most=APART,
            )
            for one in found[len(ratios) :]
        ),
        *(claim(f"{what}, a larger model, {one['rows']:.0f} rows", one["ratio"]) for one in found[len(ratios) :]),
    ]
    return finish("drafts", {"drafts": options.drafts, "rounds": options.rounds, "cases": found}, claims, options.out)


if __name__ == "__main__":
    sys.exit(main())
