"""Adapters learn the same batches on 1 and on 2 gloo ranks; run by test_adapters.py in a process of its own.

fork the ranks -> LearnerTeam, steps, a checkpoint and the optimizer from it again -> every rank saves its
adapters
"""

import asyncio
import dataclasses
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import learn  # beside this file
import torch

from rocstar.train.learner import checkpoint
from rocstar.train.learner.adapters import add_adapters
from rocstar.train.learner.checkpoint_writer import Order
from rocstar.train.learner.commands import ReleaseMemory
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.sharding import shard
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.learner.world import World
from rocstar.train.publish.rank_commands import WriteWeights, weight_source
from rocstar.train.recipe.model_config import LoraConfig, ModelConfig

STEPS = 3


async def lead(team: LearnerTeam, folder: Path, *, reloads: bool) -> dict[str, Any]:
    spec = OptimSpec(kind="adamw", lr=1e-2, weight_decay=0.1, grad_clip=1.0, warmup_steps=2)
    await team.use(spec)
    settings = dataclasses.replace(learn.SETTINGS, entropy_alpha=0.5)
    norms = []
    for batch in range(STEPS):
        norms += (await team.policy_step(learn.updates(batch), settings)).grad_norms
        if batch == 0:
            await team.save(Order(run_dir=folder, step=1, progress={}, keep_last=1, keep_every=0))
            await team.finish_saving()
        if batch == 0 and reloads:
            await team.run(ReleaseMemory())  # a process that resumes has no gradients yet, and torch minds them
            await team.use(spec)
            await team.load_optimizer(checkpoint.step_directory(folder, 1))
    merged = await weight_source(team)
    assert merged is not None
    found = {name: merged.tensor(name).detach().clone() for name in merged.shapes()}
    folder.joinpath("files").mkdir()
    await team.run(WriteWeights(folder / "files", torch.float32))
    await team.stop()
    return {"norms": norms, "merged": found}


def adapt(rank: int, size: int, out: Path) -> None:
    torch.set_num_threads(1)
    world = World.join()
    model = learn.build(learn.Case("qwen3", tied=True))
    add_adapters(model, LoraConfig(rank=4, alpha=12), seed=5)
    shard(model, world, ModelConfig())
    with ThreadPoolExecutor(1) as thread:
        team = LearnerTeam(model, world, thread)
        if rank:
            team.follow()
        else:
            folder = out / f"run {size}"
            folder.mkdir()
            torch.save(asyncio.run(lead(team, folder, reloads=size > 1)), out / f"learned {size}.pt")
        team.close()
    own = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    torch.save(own, out / f"adapters {size} {rank}.pt")
    world.leave()


if __name__ == "__main__":
    for number in (1, 2):
        learn.fork(number, Path(sys.argv[1]), adapt)
