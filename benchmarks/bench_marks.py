"""What it costs the learner to write down what it made of each token: CPU of a step with and without marks.

    python benchmarks/bench_marks.py --out benchmarks/results/marks.json

A model of the quickstart's size learns the same synthetic batch again and again, in turns with and without
marks; with them their file is written and waited for, which a run does not. CPU is that of the whole process,
the writer's thread among it. Bytes and time of one million tokens: `bench_step_data.py`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from sandbox_bench.report import bar, finish

from rocstar.train.learner.batch import MicroBatch, pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.learner import Learner, LossSettings
from rocstar.train.learner.marks import MarksPlace, MarksWriter, TokenMarks
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.model_config import ScratchConfig

VOCAB, TRAJECTORIES, LENGTH, PROMPT = 400, 192, 160, 40
SETTINGS = LossSettings(temperature=1.0, clip_low=0.2, clip_high=0.28)


def batch(num_updates: int) -> list[list[MicroBatch]]:
    generator = torch.Generator().manual_seed(0)
    mask = [0] * PROMPT + [1] * (LENGTH - PROMPT)
    rows = [
        Example(
            ids=torch.randint(VOCAB, (LENGTH,), generator=generator).tolist(),
            mask=mask,
            weights=[m / (TRAJECTORIES * (LENGTH - PROMPT)) for m in mask],
            rollout_logprobs=[-6.0 if m else None for m in mask],
            advantage=float(torch.randn((), generator=generator)),
            name=f"s1/task{k // 16}/{k % 16}",
        )
        for k in range(TRAJECTORIES)
    ]
    each = len(rows) // num_updates
    return [pack(rows[k * each : (k + 1) * each], tokens_per_microbatch=4096) for k in range(num_updates)]


def step_cpu_s(learner: Learner, updates: list[list[MicroBatch]], folder: Path | None) -> float:
    """CPU seconds of one step; with `folder`, of its marks too."""
    began = time.process_time()
    learner.marks = None if folder is None else TokenMarks()
    learner.policy_step(updates, SETTINGS)
    if folder is not None and learner.marks is not None:
        writer = MarksWriter(0, 1)
        writer.begin(MarksPlace(folder=folder, step=1), learner.marks)
        writer.close()
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    learner = Learner(build_model(ScratchConfig(), VOCAB, seed=0))
    learner.use(OptimSpec(kind="adamw", lr=1e-5, weight_decay=0.0, grad_clip=1.0, warmup_steps=0))
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for num_updates in (1, 2):
            updates = batch(num_updates)
            step_cpu_s(learner, updates, folder)
            pairs = [
                (step_cpu_s(learner, updates, None), step_cpu_s(learner, updates, folder))
                for _ in range(options.rounds)
            ]
            without, with_marks = (statistics.median(column) for column in zip(*pairs, strict=True))
            began = time.process_time()
            marks = TokenMarks()
            learner.marks = marks
            learner.policy_step(updates, SETTINGS)
            learner.marks, began = None, time.process_time()
            writer = MarksWriter(0, 1)
            writer.begin(MarksPlace(folder=folder, step=1), marks)
            writer.close()
            written_s = time.process_time() - began
            size = sum(path.stat().st_size for path in folder.iterdir())
            tokens = TRAJECTORIES * (LENGTH - PROMPT)
            found.append(
                {
                    "updates": num_updates,
                    "tokens": tokens,
                    "step_cpu_s": round(without, 4),
                    "with_marks_cpu_s": round(with_marks, 4),
                    "writing_cpu_s": round(written_s, 5),
                    "writing_share": round(written_s / without, 5),
                    "bytes_a_token": round(size / tokens, 2),
                }
            )
            print(found[-1], flush=True)
    bars = [
        bar("writing the marks, share of a step's CPU", max(one["writing_share"] for one in found), 0.01,
            at_most=True),
        bar("a step with marks over one without, CPU",
            max(one["with_marks_cpu_s"] / one["step_cpu_s"] for one in found), 1.01, at_most=True),
    ]  # fmt: skip
    return finish("marks", {"rounds": options.rounds, "cases": found}, bars, options.out)


if __name__ == "__main__":
    raise SystemExit(main())
