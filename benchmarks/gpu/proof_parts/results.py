"""The results of the parts: the fields of a class are the fields of a part's JSON, on every machine.

A field is None, and a list empty, until it is measured; it stays so where a device is needed or time is up.
Times are medians in milliseconds or seconds as the name says, memory is in GiB, shares are of 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

SEED = 7
"""Seed of all inputs and weights that a part draws."""


@dataclass(kw_only=True, slots=True)
class NewShape:
    """One decode attention (64 rows, 8 heads of 64) at 40 contexts that differ by one token."""

    backend: str
    kv_heads: int
    first_ms: float | None = None
    median_ms: float | None = None
    worst_ms: float | None = None
    left_out: str | None = None


@dataclass(kw_only=True, slots=True)
class Facts:
    """The machine and its software."""

    device: str | None = None
    python: str | None = None
    kernel: str | None = None
    libc: str | None = None
    compiler: str | None = None
    versions: dict[str, str | None] | None = None
    """Version of each package that the figures depend on; None for one that is not installed."""
    cuda: str | None = None
    hip: str | None = None
    cudnn: int | None = None
    nvidia_smi: str | None = None
    """Name, memory, driver, clock and power limit."""
    memory_gib: float | None = None
    multiprocessors: int | None = None
    l2_mib: float | None = None
    sandbox_doctor: str | None = None
    sandbox_exit: int | None = None
    attention_order: list[str] | None = None
    """Backends of `scaled_dot_product_attention` as torch would try them."""
    new_shapes: list[NewShape] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class RowError:
    """The largest error of one output of the row kernels, over all configs and cases."""

    dtype: str
    output: str
    error: float


@dataclass(kw_only=True, slots=True)
class HeadError:
    """`linear_loss` against float64 autograd through all logits on the same device."""

    dtype: str
    head_dtype: str
    """dtype of the logits."""
    tokens: int
    hidden: int
    vocabulary: int
    logprob: float
    """Largest absolute error."""
    hidden_gradient: float
    """Norm of the error over the norm, as for the weight."""
    weight_gradient: float
    error_over_tolerance: float


@dataclass(kw_only=True, slots=True)
class Repeats:
    """How many runs of one input differ in a bit from the first one."""

    what: str
    runs: int
    differing: int


@dataclass(kw_only=True, slots=True)
class Parity:
    """Kernels and head against their definition in float64, and the same bits every time."""

    configs: list[str] | None = None
    cases: int | None = None
    rows: list[RowError] = field(default_factory=list)
    row_failures: list[str] | None = None
    """Errors beyond the tolerances of cases.py, in which config and case."""
    head: list[HeadError] = field(default_factory=list)
    head_error_over_tolerance: float | None = None
    repeats: list[Repeats] = field(default_factory=list)
    differing_runs: int | None = None


@dataclass(kw_only=True, slots=True)
class UpdateError:
    """Two updates of one model on the device against the same on the CPU."""

    dtype: str
    weights_apart_over_moved: float
    """Norm of the difference of the weights over the norm of the CPU's change."""
    losses: list[list[float]]
    """Pairs for each update: on the CPU, on the device."""
    gradient_norms: list[list[float]]
    entropies: list[list[float]]
    gradient_norms_apart: float
    """The largest relative difference."""


@dataclass(kw_only=True, slots=True)
class Updates:
    """The learner on the device and on the CPU."""

    rows: list[UpdateError] = field(default_factory=list)
    float32_weights_apart: float | None = None
    bfloat16_gradient_norms_apart: float | None = None


@dataclass(kw_only=True, slots=True)
class Loop:
    """`rocstar train recipes/quickstart.toml`, shortened: cold start, RL with tool calls, evaluation."""

    exit_code: int | None = None
    seconds: float | None = None
    asked_steps: int | None = None
    steps: int | None = None
    """RL steps that were recorded."""
    step_s: list[float] | None = None
    rewards: list[float] | None = None
    tool_calls_mean: list[float] | None = None
    tool_error_share: list[float] | None = None
    generated_tokens_per_s: list[float] | None = None
    output: str | None = None
    """The last lines."""


@dataclass(kw_only=True, slots=True)
class Product:
    """One product of the head at one chunk."""

    name: str
    ms: float | None = None
    tflops: float | None = None
    left_out: str | None = None


@dataclass(kw_only=True, slots=True)
class RowKernel:
    """Row kernels alone; shares are of the bytes per second of a copy."""

    config: str
    stats_ms: float
    stats_share_of_copy: float
    gradient_ms: float
    gradient_share_of_copy: float


@dataclass(kw_only=True, slots=True)
class Chunked:
    """`linear_loss`, forward and backward. `chunk_rows` None: as many as it chooses itself."""

    chunk_rows: int | None
    ms: float | None = None
    tflops: float | None = None
    share_of_product_rate: float | None = None
    peak_gib: float | None = None
    left_out: str | None = None


@dataclass(kw_only=True, slots=True)
class Head:
    """The loss of a 14B head, beside what this device can do."""

    dtype: str | None = None
    tokens: int | None = None
    hidden: int | None = None
    vocabulary: int | None = None
    copy_bytes_per_s: float | None = None
    products: list[Product] = field(default_factory=list)
    product_tflops: float | None = None
    """The fastest of the products that the head is made of."""
    row_kernels: list[RowKernel] = field(default_factory=list)
    chunks: list[Chunked] = field(default_factory=list)
    ms: float | None = None
    """With the chunk rows that `linear_loss` chooses itself."""
    share_of_product_rate: float | None = None


@dataclass(kw_only=True, slots=True)
class Peer:
    """The same head by other means, each in a process of its own."""

    way: str | None = None
    ms: float | None = None
    tflops: float | None = None
    peak_gib: float | None = None
    gradient_error: float | None = None
    """Error of the weight's gradient against rocstar's, relative to its norm; None for another loss."""
    left_out: str | None = None


@dataclass(kw_only=True, slots=True)
class LearnerStep:
    """One policy update of a packed batch, weights and moments in place."""

    checkpointing: bool
    tokens: int | None = None
    loss_tokens: int | None = None
    first_s: float | None = None
    seconds: float | None = None
    tokens_per_s: float | None = None
    model_tflops: float | None = None
    """Per second: three times the FLOP of a forward, attention and head included, no recomputation."""
    mfu: float | None = None
    """Share of the device's stated bfloat16 rate."""
    measured_gib: float | None = None
    rehearsed_gib: float | None = None
    measured_over_rehearsed: float | None = None
    left_out: str | None = None


@dataclass(kw_only=True, slots=True)
class Learner:
    """The learner at one size of model, with random weights."""

    size: str | None = None
    dtype: str | None = None
    tokens_per_microbatch: int | None = None
    peak_tflops: float | None = None
    """The device's stated dense bfloat16 rate; None if unknown."""
    steps: list[LearnerStep] = field(default_factory=list)
    best_mfu: float | None = None
    measured_over_rehearsed: list[float] | None = None


@dataclass(kw_only=True, slots=True)
class Decode:
    """One side of multi-turn decoding: rocstar's embedded engine, or a setting of transformers."""

    side: str | None = None
    dtype: str | None = None
    trajectories: int | None = None
    tokens: int | None = None
    warm_s: float | None = None
    seconds: float | None = None
    tokens_per_s: float | None = None
    logprob_error: float | None = None
    """The largest, against a plain forward of the same model."""
    peak_gib: float | None = None


@dataclass(kw_only=True, slots=True)
class Suite:
    """The project's tests on this machine."""

    exit_code: int | None = None
    is_cut_short: bool | None = None
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None
    failures: list[str] | None = None


RESULTS: dict[str, type] = {
    "facts": Facts,
    "parity": Parity,
    "updates": Updates,
    "loop": Loop,
    "head": Head,
    "learner": Learner,
    "decode": Decode,
    "peer": Peer,
    "tests": Suite,
}
"""By kind of part."""


def part_file(out: Path, name: str, suffix: str) -> Path:
    """A file of the part called `name`: its result, log, or what else it writes."""
    return out / "parts" / (name.replace(" ", "-") + suffix)
