"""Attention of one decoding step on a CPU, built from csrc/ (theory of operation: csrc/attend/attend.h)."""

LANES: int

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
    """Rows [begin, end) of a step; every tensor by its address, strides in elements. Releases the GIL."""
