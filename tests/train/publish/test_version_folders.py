"""A version's folder is whole and is a model's; old ones go, and so does what another run left."""

from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from rocstar.train.publish.server_publisher import KEPT, VersionFolders


def save(tensors: dict[str, torch.Tensor], folder: Path, dtype: torch.dtype) -> None:
    save_file({name: t.to(dtype) for name, t in tensors.items()}, folder / "model.safetensors")


def test_versions_come_whole_and_go(tmp_path: Path) -> None:
    start, root = tmp_path / "start", tmp_path / "weights"
    start.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"):
        (start / name).write_text(name)
    (root / "v9").mkdir(parents=True)
    (root / "v3.partial").mkdir()
    (root / "start").mkdir()
    folders = VersionFolders(root, start, torch.bfloat16)
    assert [path.name for path in root.iterdir()] == ["start"]
    weight = torch.randn(3, 4)
    for version in range(1, 6):
        tensors = {"a": weight * version, "b": weight.T.contiguous()}
        folder = folders.fill(version, partial(save, tensors))
        assert folder == folders.folder(version)
        found = load_file(folder / "model.safetensors")
        assert torch.equal(found["a"], (weight * version).bfloat16()) and found["b"].shape == (4, 3)
        assert (folder / "config.json").read_text() == "config.json"
        assert not (folder / "model.safetensors.index.json").exists()
    names = sorted(path.name for path in root.iterdir())
    assert names == ["start", *(f"v{k}" for k in range(6 - KEPT, 6))]
