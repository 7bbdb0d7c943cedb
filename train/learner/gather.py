"""Gather weights from all ranks, tensor by tensor.

    every rank, in the same order: its part, rounded first ─┬─> the owner: the complete tensor
                                                            └─> all ranks: a bucket of complete tensors

The owner waits for the shards of its mesh's row, the others until theirs are received. If weights are
replicated over nodes (mesh.py) an owner gathers within its node, so nodes do not wait for each other.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rocstar.engine.inference.weight_stream import Bucket, in_buckets
from rocstar.train.learner.adapters import Weight, weights_of

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


FILE_BYTES = 1 << 30
"""Weights for which one more rank writes."""
BUCKET_BYTES = 1 << 29
"""Weights that are gathered together for servers; two such buckets are there at a time."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A weight, and the rank that will have all of it."""

    weight: Weight
    owner: int
    dtype: torch.dtype
    """Shape of the complete tensor."""

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def parameter(self) -> Tensor:
        """This rank's shard of it, or the base of an adapter."""
        return self.weight.parameter.detach()


def owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """The owner of each tensor of so many bytes: as many ranks, spread out, as there are FILE_BYTES in all.

    Invariant: what one owns are neighbours, of about as many bytes as any other's.
    """
    total = sum(sizes)
    files = max(1, min(ranks, -(-total // FILE_BYTES)))
    found, before = [], 0
    for size in sizes:
        file = min(files - 1, (2 * before + size) * files // max(1, 2 * total))
        found.append(file * ranks // files)
        before += size
    return found


def whole_buckets(model: nn.Module, dtype: torch.dtype | None = None, *, keeps: bool = True) -> Iterator[Bucket]:
    """Every weight whole, in `dtype` or its own, in buckets of at most BUCKET_BYTES; a larger one is alone.

    A collective under FSDP: every rank must come to the end. Without `keeps` this rank only gives its parts,
    and its buckets are empty. A tied weight appears once.
    """
    weights = {one.name: one for one in weights_of(model)}
    types = {name: dtype or one.parameter.dtype for name, one in weights.items()}
    sizes = {name: one.parameter.numel() * types[name].itemsize for name, one in weights.items()}
    for names in in_buckets(sizes, BUCKET_BYTES):
        wholes = [(name, _whole(weights[name].whole(), types[name], keeps=keeps)) for name in names]
        bucket = [(name, whole) for name, whole in wholes if whole is not None]
        del wholes
        yield bucket
        del bucket  # before the next is gathered


def _whole(weight: Tensor, dtype: torch.dtype, *, keeps: bool) -> Tensor | None:
    any_weight: Any = weight.to(dtype)
    whole: Tensor = any_weight.full_tensor() if hasattr(any_weight, "full_tensor") else any_weight
    return whole if keeps else None


def planned(model: nn.Module, ranks: int, dtype: torch.dtype | None = None) -> list[Planned]:
    """Every weight and who will own it, in `dtype` or its own type; a tied one appears once."""
    weights = weights_of(model)
    if not any(hasattr(weight.parameter, "full_tensor") for weight in weights):
        ranks = 1
    types = [dtype or weight.parameter.dtype for weight in weights]
    sizes = [w.parameter.numel() * of.itemsize for w, of in zip(weights, types, strict=True)]
    found = zip(weights, types, owners(sizes, ranks), strict=True)
    return [Planned(weight, owner, of) for weight, of, owner in found]


def gathered(plan: Sequence[Planned], rank: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that this rank owns. A collective: every rank must iterate to the end."""
    for one in plan:
        whole = gather_tensor(one.weight.whole(), one.owner, rank, one.dtype)
        if whole is not None:
            yield one.name, whole


def gather_tensor(parameter: Tensor, owner: int, rank: int, dtype: torch.dtype) -> Tensor | None:
    """The tensor, rounded to `dtype` before it travels; None where this rank is not its owner."""
    any_parameter: Any = parameter
    if not hasattr(parameter, "full_tensor"):
        return parameter.to(dtype) if rank == owner else None
    mesh = any_parameter.device_mesh
    group = mesh.get_group(mesh.ndim - 1)
    among = dist.get_process_group_ranks(group)
    local: Tensor = any_parameter.to_local().to(dtype)
    if len(among) == 1:
        return local if rank == owner else None
    if owner not in among:
        return None
    each = -(-parameter.shape[0] // len(among))  # FSDP parts the first dimension as torch.chunk does
    part = local.new_zeros(each, *parameter.shape[1:])
    part[: len(local)] = local
    if rank != owner:
        dist.gather(part.view(torch.uint8), dst=owner, group=group)
        return None
    whole: Tensor = part.new_empty(each * len(among), *parameter.shape[1:])
    # As bytes: not every backend knows every type.
    dist.gather(part.view(torch.uint8), list(whole.view(torch.uint8).chunk(len(among))), dst=owner, group=group)
    return whole[: parameter.shape[0]]
