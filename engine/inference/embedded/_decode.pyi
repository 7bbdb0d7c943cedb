"""What the embedded engine computes on a CPU itself, built from csrc/attend/; tensors by addresses."""

from collections.abc import Sequence

LANES: int
FORWARD_IS_FAST: bool

def attend(
    queries: int,
    keys: int,
    values: int,
    query_stride: int,
    key_stride: int,
    value_stride: int,
    key_cache: int,
    value_cache: int,
    out: int,
    slots: int,
    positions: int,
    heads: int,
    kv_heads: int,
    size: int,
    capacity: int,
    scale: float,
    begin: int,
    end: int,
    /,
) -> None:
    """Rows [begin, end) of a step of attention; strides in elements. Releases the GIL."""

class Forward:
    """A whole forward of a model of this shape (csrc/attend/forward.h)."""

    def __init__(
        self,
        *,
        layers: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        size: int,
        inner: int,
        vocabulary: int,
        eps: float,
        scale: float,
    ) -> None: ...
    def run(
        self,
        weights: Sequence[int],
        cosines: int,
        sines: int,
        keys: Sequence[int],
        values: Sequence[int],
        capacity: int,
        ids: int,
        slots_of_tokens: int,
        positions: int,
        logits: int,
        parts: Sequence[tuple[int, int, int, int]],
        /,
    ) -> None:
        """A thread per part; keys and values of each layer. Releases the GIL.

        ValueError: not as many weights or layers of the cache as such a model has.
        """

def sample(
    logits: int, vocabulary: int, temperatures: int, noise: int, tokens: int, logprobs: int, begin: int, end: int, /
) -> bool:
    """Rows [begin, end); False if one has no distribution. Releases the GIL."""
