"""Weights on their way to an engine: where they lie, or that they are here. No engine asks for more.

learner ─> WeightSource ─> Inference.publish(version, source)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]


class WeightSource(Protocol):
    """Named tensors in the names and shapes of the Hugging Face model."""

    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def tensor(self, name: str) -> Tensor: ...


class DiskWeights:
    """The safetensors files of a folder that the server can read too, as they are at the first look."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Path] = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        if not self._shapes:
            for file in sorted(self.path.glob("*.safetensors")):
                with _open(file) as tensors:
                    for name in list(tensors.keys()):
                        self._shapes[name] = tuple(tensors.get_slice(name).get_shape())
                        self._files[name] = file
        if not self._shapes:
            raise ValueError(f"{self.path} holds no safetensors; name a folder that save_pretrained wrote")
        return self._shapes

    def tensor(self, name: str) -> Tensor:
        self.shapes()
        with _open(self._files[name]) as tensors:
            tensor: Tensor = tensors.get_tensor(name)
            return tensor


class LiveWeights:
    """Tensors of this process, to be broadcast, in `dtype` if one is named ("bfloat16"). They must not change
    while a publish is under way."""

    def __init__(
        self, tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]], *, dtype: str | None = None
    ) -> None:
        self._tensors, self._dtype = dict(tensors), dtype

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def tensor(self, name: str) -> Tensor:
        import torch

        tensor = self._tensors[name].detach()
        return tensor if self._dtype is None else tensor.to(getattr(torch, self._dtype))

    def sizes(self) -> dict[str, int]:
        """Bytes of each, as it is sent."""
        import torch

        given = None if self._dtype is None else getattr(torch, self._dtype)
        return {name: t.numel() * (given or t.dtype).itemsize for name, t in self._tensors.items()}

    def save(self, folder: Path) -> DiskWeights:
        """The same tensors as a file, for servers whose broadcast failed."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: self.tensor(name).cpu().contiguous().clone() for name in self._tensors}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        let_readers_in(folder)
        return DiskWeights(folder)


def let_readers_in(folder: Path) -> None:
    """Give the safetensors below a folder to its readers: their library writes for the owner alone."""
    wanted = folder.stat().st_mode & 0o666
    for file in folder.rglob("*.safetensors"):
        if (mode := file.stat().st_mode) | wanted != mode:
            file.chmod(mode | wanted)


def _open(file: Path) -> Any:
    from safetensors import safe_open

    return safe_open(file, framework="pt")
