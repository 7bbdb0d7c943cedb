"""A model on disk, opened without a learner."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from rocstar.train.learner import sharding
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.model_config import ScratchConfig
from rocstar.train.serving import embedded

SCRATCH = ScratchConfig(hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=64)


async def test_it_runs_on_the_gpu_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device replaces the GPU."""
    build_model(SCRATCH, 40, seed=0).save_pretrained(tmp_path)
    monkeypatch.setattr(sharding, "local_device", lambda: torch.device("meta"))
    found: list[torch.device] = []
    opened = embedded.open_engines

    def noting(recipe: Recipe, model: torch.nn.Module, thread: ThreadPoolExecutor) -> object:
        found.extend(parameter.device for parameter in model.parameters())
        return opened(recipe, model, thread)  # type: ignore[arg-type]

    monkeypatch.setattr(embedded, "open_engines", noting)
    with ThreadPoolExecutor(1) as thread:
        async with embedded.Embedded().open(Recipe(), str(tmp_path), thread):
            assert {device.type for device in found} == {"meta"}
