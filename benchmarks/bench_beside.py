"""Decoding and learning at once: the embedded engine in a thread beside the learner's, and in the same one.

    python benchmarks/bench_beside.py

What `rl.max_staleness` above 0 does with an embedded engine (train/serving/embedded.py), against what 0
does. A model of 51 million parameters with random weights, which both share; one thread of torch for each.
Per round 64 rows of 64 tokens are decoded and one update is made of 32 other rows. Beside each other both
begin at once: the engine decodes on while the gradient is made, holds still while the weights change, and
computes the KV of its unfinished rows again. In one thread the update follows the rows. Which library
multiplies matrices is the process's setting (kernels/cpu_products.py): beside a learner that took the
faster one for large models, the engine decodes with it too. So one thread runs once more with the learner's
choice for both, which no run has: what is left of the ratio is the threads'. Every round does all ways on
the same work, each in turn the first; a ratio is that of one round."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from sandbox_bench.report import ROOT, finish
from sandbox_bench.stats import median
from trl_bench import rows

from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.kernels.cpu_products import fast_products
from rocstar.sandbox.bench import table
from rocstar.train.algorithm.off_policy import Correction
from rocstar.train.learner.batch import MicroBatch, pack, policy_examples
from rocstar.train.learner.host_memory import keep_freed_memory
from rocstar.train.learner.learner import Learner, LossSettings
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.model_config import ScratchConfig

VOCABULARY = 25_600
SCRATCH = ScratchConfig(
    vocab_size=VOCABULARY, hidden_size=512, num_layers=12, num_heads=8, num_kv_heads=4, intermediate_size=1536
)
PROMPT, SIBLINGS = 32, 32
TOKENS_PER_MICROBATCH = 4096
SETTINGS = LossSettings(temperature=1.0, clip_low=0.2, clip_high=0.28, correction=Correction.none)
SPEC = OptimSpec(kind="adamw", lr=1e-7, weight_decay=0.0, grad_clip=1.0, warmup_steps=0)
BESIDE, IN_TURN, SWITCHED = "beside each other", "in one thread", "in one thread, learner's products"
WAYS = (BESIDE, IN_TURN, SWITCHED)


class Pair:
    """An engine in `own` or in the learner's thread, and a learner, over the same weights. Enter it."""

    def __init__(self, model: Any, options: argparse.Namespace, way: str) -> None:
        self._learning, self._own = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        for thread in (self._learning, self._own):
            thread.submit(torch.set_num_threads, 1).result()
        self.way, self._options, self._version = way, options, 0
        decoding = self._own if way == BESIDE else self._learning
        self.engine = EmbeddedEngine(model, max_running=options.rows, thread=decoding)
        self._learner = Learner(model)
        self._learner.use(SPEC)
        self._held = contextlib.ExitStack()

    async def __aenter__(self) -> Pair:
        await self.engine.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.engine.__aexit__(*error)
        self._learning.shutdown()
        self._own.shutdown()

    async def round(self, number: int, micros: list[MicroBatch]) -> dict[str, float]:
        """Seconds until all rows are there, of the update, and until both are done."""
        started = time.perf_counter()
        if self.way == BESIDE:
            decode_s, learn_s = await asyncio.gather(self._decode(number), self._learn(micros))
        else:
            with fast_products() if self.way == SWITCHED else contextlib.nullcontext():
                decode_s = await self._decode(number)
            learn_s = await self._learn(micros)
        return {"wall_s": time.perf_counter() - started, "decode_s": decode_s, "learn_s": learn_s}

    async def _decode(self, number: int) -> float:
        started, options, rng = time.perf_counter(), self._options, random.Random(number)
        prompts = [
            [rng.randrange(VOCABULARY) for _ in range(PROMPT)] for _ in range(0, options.rows, SIBLINGS)
        ]

        async def one(index: int) -> None:
            name = f"{number}/{index}"
            found = await self.engine.generate(
                prompts[index // SIBLINGS],
                max_new_tokens=options.tokens,
                stop_ids=frozenset(),
                sampling=Sampling(),
                seed=index,
                request_id=name,
                deadline=None,
            )
            assert len(found.ids) == options.tokens
            self.engine.release(name)

        async with asyncio.TaskGroup() as tasks:
            for index in range(options.rows):
                tasks.create_task(one(index))
        return time.perf_counter() - started

    async def _learn(self, micros: list[MicroBatch]) -> float:
        """As EnginePublisher does it: no forward from the first changed weight until its version serves."""
        started, loop = time.perf_counter(), asyncio.get_running_loop()
        self._version += 1
        with self._held:
            self._learner.before_change = self._hold
            await loop.run_in_executor(self._learning, self._learner.policy_step, [micros], SETTINGS)
            await self.engine.publish(self._version)
        return time.perf_counter() - started

    def _hold(self) -> None:
        self._held.enter_context(self.engine.hold())
        self.engine.quiesce()


async def measure(options: argparse.Namespace) -> tuple[int, list[dict[str, dict[str, float]]]]:
    """Parameters of the model, and every round's times by way."""
    model = build_model(SCRATCH, VOCABULARY, seed=0)
    batch = rows.equal(VOCABULARY, groups=options.learned // SIBLINGS, siblings=SIBLINGS)
    examples = policy_examples(batch.trajectories, batch.advantages)
    micros = pack(examples, tokens_per_microbatch=TOKENS_PER_MICROBATCH)
    found = []
    async with contextlib.AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(Pair(model, options, way)) for way in WAYS]
        for number in range(-1, options.rounds):
            times = {}
            for k in range(len(pairs)):
                pair = pairs[(number + k) % len(pairs)]
                gc.collect()
                times[pair.way] = await pair.round(number, micros)
            print(f"round {number}: {times}", flush=True)
            found.append(times)
    return sum(p.numel() for p in model.parameters()), found[1:]  # the first one warms up


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64, help="decoded per round")
    parser.add_argument("--tokens", type=int, default=64, help="of each of them")
    parser.add_argument("--learned", type=int, default=32, help="rows of the update")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "beside.json")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    parameters, rounds = asyncio.run(measure(options))
    sides = []
    for way in WAYS:
        walls = [one[way]["wall_s"] for one in rounds]
        sides.append(
            {
                "way": way,
                **{
                    name: round(median([one[way][name] for one in rounds]), 3)
                    for name in ("wall_s", "decode_s", "learn_s")
                },
                "range": f"{min(walls):.2f} to {max(walls):.2f}",
            }
        )
    print(table(tuple(sides[0]), [list(side.values()) for side in sides]), end="\n\n")
    over = {way: [one[way]["wall_s"] / one[BESIDE]["wall_s"] for one in rounds] for way in WAYS[1:]}
    result = {
        "torch": torch.__version__,
        "parameters": parameters,
        "over_beside": {
            way: {"median": round(median(some), 2), "range": [round(min(some), 2), round(max(some), 2)]}
            for way, some in over.items()
        },
        "ways": sides,
        "rounds": [
            {way: {name: round(value, 3) for name, value in times.items()} for way, times in one.items()}
            for one in rounds
        ],
    }
    print(result["over_beside"])
    return finish("bench_beside", result, [], options.out)


if __name__ == "__main__":
    sys.exit(main())
