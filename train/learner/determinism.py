"""Same seed, same bits: what torch must do for it in this process.

With one thread torch adds numbers up in one order. With several, the gradient of an index (`x[rows]`) is
added up by whichever thread comes first, and its last bits are another run's. torch has a slower form that
does not depend on it; `deterministic_torch` asks for that one, and torch warns where it has none.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def deterministic_torch(wanted: bool) -> Iterator[None]:
    """Inside, equal inputs and equally many threads give equal bits on a CPU. For the whole process."""
    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # a module of properties, of which types know nothing
    filled = memory.fill_uninitialized_memory
    if wanted:
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Else each new tensor is filled before it is written, for the sake of who would read it unwritten.
        memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned_only)
        memory.fill_uninitialized_memory = filled
