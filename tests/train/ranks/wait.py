"""Two gloo ranks of which one waits long for the other; run by test_leader.py, a process for each rank.

argv: what rank 0 does between two verbs: `think` for longer than a collective may take, or `hang` for ever.
The store is the parent's, as it is torchrun's in a run.
"""

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from transformers import LlamaForCausalLM
from transformers.models.llama.configuration_llama import LlamaConfig

from rocstar.train.learner import world as world_module
from rocstar.train.learner.commands import Greedy
from rocstar.train.learner.sharding import shard
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.learner.world import World
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.model_config import ModelConfig

COLLECTIVE_S, THINKS_S, BEAT_S, SILENT_S = 6.0, 10.0, 0.5, 3.0
SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def think(what: str) -> None:
    """The loop stands still meanwhile, too."""
    print("waits", flush=True)
    time.sleep(THINKS_S if what == "think" else 1e6)


async def lead(made: LearnerTeam, what: str) -> None:
    await made.run(Greedy([1, 2], 1))
    think(what)
    await made.run(Greedy([1, 2], 1))
    await made.stop()


def main(what: str) -> None:
    torch.set_num_threads(1)
    world_module.COLLECTIVE_TIMEOUT = timedelta(seconds=COLLECTIVE_S)
    vars(world_module).update(BEAT_S=BEAT_S, SILENT_S=SILENT_S)
    world = World.join()
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20, max_position_embeddings=32, **SIZES))
    shard(model, world, ModelConfig())
    with ThreadPoolExecutor(1) as thread:
        made = LearnerTeam(model, world, thread)
        if world.rank:
            made.follow()
        else:
            asyncio.run(lead(made, what))
    world.leave()
    print("done", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except TrainingStopped as error:
        sys.exit(f"stopped: {error}")
