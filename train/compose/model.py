"""The learner's model: given by the recipe, loaded again from a checkpoint, or made from nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rocstar.train.compose.setup import Setup
from rocstar.train.learner import checkpoint
from rocstar.train.learner.load_parts import load_learner
from rocstar.train.learner.model_io import load_model
from rocstar.train.learner.sharding import is_apart, shard
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.serving.nodes import Start


@dataclass(slots=True, kw_only=True)
class FirstModel:
    """A model in memory, or the place from which it is loaded when it is needed."""

    path: str
    dtype: Literal["float32", "bfloat16"]
    loaded: PreTrainedModel | None = None

    def load(self) -> PreTrainedModel:
        """Return the model in memory, or a new copy from `path`."""
        return load_model(self.path, self.dtype) if self.loaded is None else self.loaded


def make_team(
    setup: Setup, model: FirstModel, tokenizer: PreTrainedTokenizerBase, token: str | None
) -> LearnerTeam:
    """Return the learners of all ranks on `model`; without adapters or shards rank 0 learns in that copy."""
    recipe, world = setup.recipe, setup.world
    is_scratch = recipe.model.path == "scratch"
    if recipe.lora.rank or is_apart(world, recipe.model):
        begun = setup.saved or (None if is_scratch else setup.cold)
        if begun:
            path = str(begun)
        elif is_scratch:  # the other ranks find rank 0's model in a folder
            folder, whole = setup.run_dir / "cold_start", model.load()
            checkpoint.save_model(folder, whole, checkpoint.full_weights(whole), tokenizer)
            path = str(folder)
        else:
            path = recipe.model.path
        return load_team(setup, path, token)
    model.loaded = model.load()
    if world.servers:
        setup.send(Start(path="", token=token, date=recipe.model.date))
    shard(model.loaded, world, recipe.model, tokens_per_microbatch=recipe.rl.tokens_per_microbatch)
    return LearnerTeam(model.loaded, world, setup.thread, recipe.model)


def load_team(setup: Setup, path: str, token: str | None = None) -> LearnerTeam:
    """Return the learners of all ranks, each with its part of the model at `path`."""
    recipe, world = setup.recipe, setup.world
    if world.size > 1 or world.servers:
        setup.send(Start(path=path, token=token, date=recipe.model.date))
    return LearnerTeam(load_learner(path, world, recipe), world, setup.thread, recipe.model)
