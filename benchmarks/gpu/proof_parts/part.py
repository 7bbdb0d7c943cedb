"""The context of a part of the proof: its sizes, its device, its deadline, and where its result goes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from .results import SEED, part_file


@dataclass(kw_only=True, slots=True)
class Part:
    """One part under way, in its own process.

    Args:
        name: kind and, after a space, which of that kind: "learner 4B".
        toy: tiny sizes on the CPU.
        out: folder of the proof; the part's files begin with its stem.
        deadline: of `time.monotonic`; the driver kills the process soon after.
        result: written to `out` by `save`.
    """

    name: str
    toy: bool
    out: Path
    deadline: float
    result: Any

    @property
    def which(self) -> str:
        """The name after the kind."""
        return self.name.partition(" ")[2]

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if torch.cuda.is_available() and not self.toy else "cpu")

    @property
    def on_device(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """dtype of timed work: bfloat16, on a CPU float32."""
        return torch.bfloat16 if self.on_device else torch.float32

    def path(self, suffix: str) -> Path:
        return part_file(self.out, self.name, suffix)

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def save(self) -> None:
        """Write the result so far; a part that is killed keeps it."""
        path = self.path(".json")
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self.result)))
        new.replace(path)

    def generator(self) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(SEED)

    def synchronize(self) -> None:
        if self.on_device:
            torch.cuda.synchronize()

    def milliseconds(self, action: Callable[[], object], repeats: int = 5) -> float:
        """Median time of `action` after one run that compiles and warms up; device events on a GPU."""
        action()
        times = []
        for _ in range(repeats if self.on_device else 1):
            if not self.on_device:
                began = time.perf_counter()
                action()
                times.append(1e3 * (time.perf_counter() - began))
                continue
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            action()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last))
        return median(times)

    def peak_gib(self, action: Callable[[], object]) -> float | None:
        """Peak memory of torch above its memory before; None on a CPU."""
        if not self.on_device:
            return None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        action()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**30


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def out_of_memory(error: torch.OutOfMemoryError) -> str:
    """The reason why a figure is left out."""
    return f"out of memory: {str(error).split('.')[0]}"
