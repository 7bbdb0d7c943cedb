"""Same seed, same bits: what torch must do for it in this process.

With one thread torch adds numbers up in one order. With several, the gradient of an index (`x[rows]`) is
added up by whichever thread comes first, and its last bits are another run's. torch has a slower form that
does not depend on it; `deterministic_torch` asks for that one. On a CPU torch warns where it has none.

On a GPU an operation without a deterministic form raises RuntimeError: under `warn_only` the backward of
attention stays nondeterministic. torch 2.11 has a deterministic form of all that a run calls there, including
the prefix sum of the sampler. Another model of GPU or another release gives other bits.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

CUBLAS_WORKSPACE = ":4096:8"
"""Eight buffers of 4 MiB for each handle, one of the two values with which cuBLAS is deterministic."""


@contextlib.contextmanager
def deterministic_torch(wanted: bool, device: torch.device) -> Iterator[None]:
    """Inside, equal inputs give equal bits: on a CPU with equally many threads, on a GPU of one model.

    For the whole process. On a GPU the variable CUBLAS_WORKSPACE_CONFIG stays set; a value that the user
    chose is kept. cuBLAS reads it when its first handle is made, so enter before the first product.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # a module of properties, of which types know nothing
    filled = memory.fill_uninitialized_memory
    if wanted:
        on_gpu = device.type == "cuda"
        if on_gpu:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
        torch.use_deterministic_algorithms(True, warn_only=not on_gpu)
        # Else each new tensor is filled before it is written, for the sake of who would read it unwritten.
        memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned_only)
        memory.fill_uninitialized_memory = filled
