"""A safetensors file that is written tensor by tensor: no more than one of them is in memory.

8 bytes: length of the header | header: JSON of types, shapes, places | the tensors, end to end
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from rocstar.train.learner.gather import Planned, gathered

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def part_name(number: int, count: int) -> str:
    """The name of file `number` (0 is the first) of a model in `count` files."""
    return SINGLE if count == 1 else f"model-{number + 1:05}-of-{count:05}.safetensors"


def write_index(folder: Path, file_by_name: Mapping[str, str], num_bytes: int) -> None:
    """Write the index of the file of each weight; a model in one file needs none."""
    if len(set(file_by_name.values())) > 1:
        index = {"metadata": {"total_size": num_bytes}, "weight_map": dict(sorted(file_by_name.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def declare_dtype(folder: Path, dtype: torch.dtype) -> None:
    """Have config.json, if there is one, name the type of the weights. It may be a link to another's."""
    path = folder / "config.json"
    if path.is_file():
        config = json.loads(path.read_text(encoding="utf-8"))
        config.pop("torch_dtype", None)
        path.unlink()
        text = json.dumps(config | {"dtype": str(dtype).removeprefix("torch.")}, indent=2, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")


class WeightFile:
    """Invariant: a file that was left without an error holds every tensor that was announced.

    Args:
        path: of the file, which must not be there.
        tensors: names and shapes of what will be added, in that order.
        dtype: the type of all of them.
    """

    def __init__(self, path: Path, tensors: Sequence[tuple[str, Sequence[int]]], dtype: torch.dtype) -> None:
        self._names, self._dtype = [name for name, _ in tensors], dtype
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, shape in tensors:
            begin, end = end, end + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": _TYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._file = path.open("xb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def add(self, name: str, weight: Tensor) -> None:
        """Write the next tensor."""
        assert self._names and name == self._names[0], f"{name} is not the next that was announced"
        del self._names[0]
        data = weight.to(self._dtype).contiguous().cpu()
        data.flatten().view(torch.uint8).numpy().tofile(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        assert kind is not None or not self._names, f"{len(self._names)} tensors were not written"


def files_of(plan: Iterable[Planned]) -> dict[str, str]:
    """The file of each weight: one per owner, in the order of the owners."""
    pairs = [(one.name, one.owner) for one in plan]
    ranks = sorted({owner for _, owner in pairs})
    return {name: part_name(ranks.index(owner), len(ranks)) for name, owner in pairs}


def write_owned(folder: Path, plan: Sequence[Planned], rank: int) -> OSError | None:
    """Write what this rank owns into its file; rank 0 the index too. A collective of all ranks.

    An error of the disk is returned at the end, for the others need this rank's parts of theirs.
    """
    files = files_of(plan)
    mine = [one for one in plan if one.owner == rank]
    weights = gathered(plan, rank)
    try:
        if rank == 0:
            num_bytes = sum(one.parameter.numel() * one.dtype.itemsize for one in plan)
            write_index(folder, files, num_bytes)
            declare_dtype(folder, plan[0].dtype)
        if mine:
            shapes = [(one.name, one.parameter.shape) for one in mine]
            with WeightFile(folder / files[mine[0].name], shapes, mine[0].dtype) as file:
                for name, weight in weights:
                    file.add(name, weight)
    except OSError as error:
        problem: OSError | None = error
    else:
        problem = None
    deque(weights, maxlen=0)  # the rest: this rank's shards of the others' tensors
    return problem
