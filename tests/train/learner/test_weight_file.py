"""Who writes which weight, and a file written tensor by tensor that others read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from rocstar.train.learner import gather
from rocstar.train.learner.gather import INDEX, WeightFile, declare_dtype, owners, planned, write_index, write_owned
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.model_config import ScratchConfig


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 8), st.integers(1, 200))
def test_owners_are_neighbours_with_about_as_much_each(sizes: list[int], ranks: int, file_bytes: int) -> None:
    before, gather.FILE_BYTES = gather.FILE_BYTES, file_bytes
    try:
        found = owners(sizes, ranks)
    finally:
        gather.FILE_BYTES = before
    assert found == sorted(found) and found[0] >= 0 and found[-1] < ranks
    files = min(ranks, -(-sum(sizes) // file_bytes))
    assert len(set(found)) <= files
    for rank in set(found):
        owned = sum(size for size, owner in zip(sizes, found, strict=True) if owner == rank)
        assert owned <= sum(sizes) / files + 2 * max(sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_is_what_safetensors_reads(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = {"a.weight": torch.randn(3, 5), "b": torch.randn(7), "c": torch.randn(4, 2).T}
    path = tmp_path / "model.safetensors"
    with WeightFile(path, [(name, weight.shape) for name, weight in weights.items()], dtype) as file:
        for name, weight in weights.items():
            file.add(name, weight)
    found = load_file(path)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weight.to(dtype)) for name, weight in weights.items())
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])
    assert size % 8 == 0 and header["__metadata__"] == {"format": "pt"}


def test_a_file_that_lacks_a_tensor_is_an_error(tmp_path: Path) -> None:
    announced = [("a", (2,)), ("b", (2,))]
    with pytest.raises(AssertionError, match="1 tensors were not written"):
        with WeightFile(tmp_path / "f", announced, torch.float32) as file:
            file.add("a", torch.zeros(2))
    with pytest.raises(AssertionError, match="b is not the next"):
        with WeightFile(tmp_path / "g", announced, torch.float32) as file:
            file.add("b", torch.zeros(2))


def test_only_several_files_need_an_index(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "x", "b": "x"}, 8)
    assert not (tmp_path / INDEX).exists()
    write_index(tmp_path, {"b": "y", "a": "x"}, 8)
    assert json.loads((tmp_path / INDEX).read_text())["weight_map"] == {"a": "x", "b": "y"}


def test_a_folder_declares_the_type_that_is_written(tmp_path: Path) -> None:
    """Its config.json may be a link to that of another folder, which keeps its own."""
    own, linked = tmp_path / "config.json", tmp_path / "linked.json"
    linked.write_text('{"torch_dtype": "float32", "a": "ü"}')
    own.hardlink_to(linked)
    declare_dtype(tmp_path, torch.bfloat16)
    assert json.loads(own.read_text()) == {"dtype": "bfloat16", "a": "ü"}
    assert json.loads(linked.read_text()) == {"torch_dtype": "float32", "a": "ü"}


def test_a_full_disk_is_told_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks need this one's parts of their tensors."""
    taken: list[str] = []
    gathered = gather.gathered

    def counted(*given: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in gathered(*given):
            taken.append(name)
            yield name, weight

    monkeypatch.setattr(gather, "gathered", counted)
    model = build_model(ScratchConfig(hidden_size=16, num_heads=2, num_kv_heads=1), 40, seed=0)
    plan = planned(model, 1, torch.bfloat16)
    assert write_owned(tmp_path, plan, 0) is None
    taken.clear()
    assert load_file(tmp_path / "model.safetensors").keys() == dict(model.named_parameters()).keys()
    problem = write_owned(tmp_path / "missing", plan, 0)
    assert isinstance(problem, FileNotFoundError) and taken == [one.name for one in plan]
