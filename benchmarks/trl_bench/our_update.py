"""One GRPO update of rocstar's learner, again and again, on recorded trajectories.

    python our_update.py MODEL RECORDS.jsonl TOKENS_PER_MICROBATCH LR

An update is timed from the trajectories to the end of the optimizer step: packing is counted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from trl_bench import rows
from trl_bench.wire import Stopwatch, answer, question

from rocstar.train.algorithm.off_policy import Correction
from rocstar.train.learner.batch import pack, policy_examples
from rocstar.train.learner.learner import Learner, LossSettings
from rocstar.train.learner.model_io import load_model
from rocstar.train.learner.optim import OptimSpec

SETTINGS = LossSettings(temperature=1.0, clip_low=0.2, clip_high=0.28, correction=Correction.none)


def main() -> None:
    model_dir, records, budget, lr = sys.argv[1:]
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_num_interop_threads(1)
    batch = rows.read(Path(records))
    model = load_model(model_dir, "float32")
    learner = Learner(model)
    learner.use(OptimSpec(kind="adamw", lr=float(lr), weight_decay=0.0, grad_clip=1.0, warmup_steps=0))
    dump = ""
    clip = torch.nn.utils.clip_grad_norm_

    def noted(*arguments: Any, **named: Any) -> Any:
        if dump:
            torch.save({name: p.grad for name, p in model.named_parameters()}, dump)
        return clip(*arguments, **named)

    torch.nn.utils.clip_grad_norm_ = noted
    answer(ready=True)
    while (command := question()) is not None:
        dump = command.get("gradients", "")
        watch = Stopwatch()
        micros = pack(
            policy_examples(batch.trajectories, batch.advantages), tokens_per_microbatch=int(budget)
        )
        stats = learner.policy_step([micros], SETTINGS)
        answer(**watch.read(), grad_norm=stats.grad_norms[0], microbatches=len(micros))


if __name__ == "__main__":
    main()
