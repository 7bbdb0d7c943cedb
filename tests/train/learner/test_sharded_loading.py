"""A rank reads its rows of a model's files, and nothing else of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rocstar.train.learner.model_io import load_model
from rocstar.train.learner.sharding import load_learner, load_shards, shard
from rocstar.train.learner.world import World
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import ModelConfig

from ...fakes.tiny import SIZES as TINY

SIZES = TINY | {"vocab_size": 50, "intermediate_size": 50}


@pytest.fixture
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A model's folder, written before there are ranks."""
    torch.manual_seed(0)
    tied = getattr(request, "param", True)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=tied))
    model.generation_config.temperature, model.generation_config.do_sample = 0.6, True
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def world(path: Path) -> Iterator[World]:
    """The last of eight ranks on two nodes; what it hears from the others is nothing."""
    dist.init_process_group("fake", rank=7, world_size=8, store=FakeStore())
    yield World(rank=7, size=8, local_size=4, local_rank=3)
    dist.destroy_process_group()


def recipe_of(**fields: Any) -> Recipe:
    return Recipe(model=ModelConfig(**fields))


class Largest(TorchDispatchMode):
    """The numbers of the largest tensor that an operation made; a view of a file's mapping is none."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        is_new = not any(given.alias_info for given in func._schema.returns)
        if is_new and type(out) is torch.Tensor and not out.is_meta:
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.parametrize("path", [True, False], indirect=True, ids=["tied", "untied"])
@pytest.mark.parametrize("sharding", ["all", "node"])
def test_a_ranks_part_is_that_of_the_loaded_model(path: Path, world: World, sharding: str) -> None:
    recipe = recipe_of(dtype="bfloat16", sharding=sharding, activation_checkpointing="on")
    whole = load_model(str(path), "float32")
    shard(whole, world, recipe.model)
    with Largest() as largest:
        part = load_learner(str(path), world, recipe)
    theirs = dict(whole.named_parameters())
    assert [*theirs] == [name for name, _ in part.named_parameters()]
    for name, parameter in part.named_parameters():
        assert parameter.placements == theirs[name].placements
        assert torch.equal(parameter.to_local(), theirs[name].to_local()), name
    assert any(len(parameter.to_local()) for parameter in part.parameters())
    mine = dict(whole.named_buffers())
    assert mine and all(torch.equal(buffer, mine[name]) for name, buffer in part.named_buffers())
    assert part.generation_config.temperature == 0.6
    assert [m.training for m in part.modules()] == [m.training for m in whole.modules()]
    ranks = 8 if sharding == "all" else 4
    assert largest.numbers <= 32 * -(-50 // ranks) * 2, "no operation made a whole weight"


def test_files_with_other_names_are_loaded_whole(path: Path, world: World) -> None:
    """transformers knows what they stand for."""
    file = path / "model.safetensors"
    weights = {name.removeprefix("model."): weight for name, weight in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    recipe = recipe_of(dtype="bfloat16")
    assert load_shards(str(path), lambda _: pytest.fail("nothing to part")) is None
    part = load_learner(str(path), world, recipe)
    theirs = load_model(str(path), "float32")
    shard(theirs, world, recipe.model)
    for one, other in zip(part.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one.to_local(), other.to_local())


def test_a_head_that_is_refused_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    Gemma2ForCausalLM(Gemma2Config(**SIZES)).save_pretrained(tmp_path)
    world = World(rank=0, size=2)
    with pytest.raises(ConfigError, match="the logits of Gemma2ForCausalLM are not the product"):
        load_learner(str(tmp_path), world, recipe_of(dtype="bfloat16"))


def test_one_process_that_shares_its_weights_loads_them(path: Path) -> None:
    model = load_learner(str(path), World(rank=0, size=1), recipe_of())
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
