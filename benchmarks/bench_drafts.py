"""Drafts from siblings in the embedded engine: generated tokens per CPU second with and without.

    make quickstart OUTPUT=runs/drafts && taskset -c 1 python benchmarks/bench_drafts.py runs/drafts

The rollouts of a run's last step again, from its last checkpoint: the recorded contexts, turn by turn, with the
recorded seeds and stop ids. Rows side by side: all, and 64, 16, 4 and 1. A random model of bench_embedded.py, whose
siblings have little in common, shows what drafts cost where they gain nothing. CPU seconds are those of the engine's
thread. Both sides in turn, after a round that is not counted; medians of the rounds. Tokens and log-probs must be
the same on both sides, bit for bit.
"""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench_embedded import scripts, tiny_model
from report import result_parser

from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.engine.record.reading import read_records
from rocstar.engine.seeds import stream_of
from rocstar.engine.types import TrajectoryKey
from rocstar.train.learner.model_io import load_model

SPEED_BAR, LEAST = 1.5, 0.98
ROWS = (384, 64, 16, 4, 1)
TASKS = {384: 12, 64: 12, 16: 6, 4: 2, 1: 1}
"""Tasks of the run at that many rows, so that each takes about a second."""

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


def compare(model: Any, work: Work, rows: int, drafts: int, rounds: int) -> dict[str, float]:
    """Tokens per CPU second on both sides. ValueError: the two differ."""
    sides = [Side(model, rows, most) for most in (0, drafts)]
    times: list[list[float]] = [[], []]
    num_tokens = 0
    for number in range(rounds + 1):
        done = [side.run(work) for side in (sides if number % 2 else sides[::-1])]
        if not number % 2:
            done.reverse()
        if done[0][1] != done[1][1]:
            raise ValueError("tokens or log-probs differ with drafts")
        num_tokens = sum(len(ids) for turns in done[0][1].values() for ids, _ in turns)
        for k in range(2):
            times[k] += [done[k][0]] if number else []
    plain, drafted = (median(of_side) for of_side in times)
    ratio = median(a / b for a, b in zip(*times, strict=True))
    return {
        "rows": rows,
        "tokens": num_tokens,
        "plain": num_tokens / plain,
        "drafted": num_tokens / drafted,
        "ratio": ratio,
    }


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("run", type=Path, help="a run of recipes/quickstart.toml")
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = max((options.run / "checkpoints").glob("step_*"), key=lambda path: int(path.name.split("_")[1]))
    trained, found = load_model(str(checkpoint), "float32"), {}
    for rows in ROWS:
        found["trained", rows] = compare(
            trained, recorded(options.run, TASKS[rows]), rows, options.drafts, options.rounds
        )
        print("trained", found["trained", rows], flush=True)
    for rows in ROWS[1:]:
        found["random", rows] = compare(
            tiny_model(), random_work(max(2, rows // 2)), rows, options.drafts, options.rounds
        )
        print("random", found["random", rows], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
