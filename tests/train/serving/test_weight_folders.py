"""A version's folder is whole and is a model's; old ones go, and so does what another run left."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from rocstar.train.serving.weight_folders import KEPT, WeightFolders


def test_versions_come_whole_and_go(tmp_path: Path) -> None:
    start, root = tmp_path / "start", tmp_path / "weights"
    start.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"):
        (start / name).write_text(name)
    (root / "v9").mkdir(parents=True)
    (root / "v3.partial").mkdir()
    (root / "start").mkdir()
    weight_folders = WeightFolders(root, start, torch.bfloat16)
    assert [path.name for path in root.iterdir()] == ["start"]
    weight = torch.randn(3, 4)
    for version in range(1, 6):
        folder = weight_folders.write(version, [("a", weight * version), ("b", weight.T)])
        assert folder == weight_folders.folder(version)
        found = load_file(folder / "model.safetensors")
        assert torch.equal(found["a"], (weight * version).bfloat16()) and found["b"].shape == (4, 3)
        assert (folder / "config.json").read_text() == "config.json"
        assert not (folder / "model.safetensors.index.json").exists()
    names = sorted(path.name for path in root.iterdir())
    assert names == ["start", *(f"v{k}" for k in range(6 - KEPT, 6))]
