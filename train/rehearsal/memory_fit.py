"""Whether learner and engine fit a GPU, and which field of the recipe to change where it does not. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rocstar.train.learner.model_io import ModelSize
from rocstar.train.recipe.config import Recipe
from rocstar.train.rehearsal.memory_tracker import GIB, Category, EngineMemory, MemoryPeak

OVERHEAD_GIB = 2.0
"""GPU memory besides tensors: the driver's context, kernels, buffers of the collectives. Assumed."""
SPARE = 0.05
"""The share of the memory left for activations that a smaller microbatch may use."""
STEP = 256
"""Tokens to whose multiple a microbatch is advised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """The fields of the recipe that decide memory."""

    tokens_per_microbatch: int
    rehearsed_tokens: int
    """Input tokens of the heaviest microbatch: more than the budget where a row alone is longer."""
    checkpointing: bool
    dtype: str
    ranks: int
    engine: EngineMemory | None = None
    """The memory of the embedded engines beside the learner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """`spare`: the share of the GPU's memory that stays free; below 0 it does not fit."""

    peak_gib: float
    memory_gib: float
    fits: bool
    spare: float
    fix: str = ""
    """The field to change and to what; empty where it fits."""


def check_fit(peak: MemoryPeak, memory_gib: float, settings: MemorySettings) -> MemoryFit:
    """Hold the highest peak against a GPU of `memory_gib`."""
    peak_gib = peak.total / GIB
    spare = 1 - (peak_gib + OVERHEAD_GIB) / memory_gib
    fits = spare >= 0
    fix = "" if fits else _fix(peak, memory_gib, settings)
    return MemoryFit(peak_gib=round(peak_gib, 3), memory_gib=memory_gib, fits=fits, spare=round(spare, 4), fix=fix)


def _fix(peak: MemoryPeak, memory_gib: float, settings: MemorySettings) -> str:
    """Return the change that helps most, by category of memory."""
    held = peak.by_category
    activations = held.get(Category.activations, 0)
    of_tokens = activations + held.get(Category.temporary, 0)
    rest = peak.total - of_tokens
    room = (memory_gib - OVERHEAD_GIB) * GIB - rest
    if fix := _fewer_rows(peak, room - of_tokens, settings.engine):
        return fix
    if peak.act not in ("sft", "rl", "decode"):
        return f"the {peak.act} needs it: take GPUs with more memory"
    if room > 0 and not settings.checkpointing and activations:
        return (
            f"set model.activation_checkpointing = true: {activations / GIB:.1f} GiB are activations, which "
            "are then computed again instead of kept"
        )
    now, rehearsed = settings.tokens_per_microbatch, settings.rehearsed_tokens
    tokens = int((1 - SPARE) * rehearsed * room / of_tokens) // STEP * STEP if of_tokens else 0
    if tokens > 0:
        return (
            f"set rl.tokens_per_microbatch = {min(tokens, now - 1)} or less (it is {now}), with no row "
            f"longer than that: {of_tokens / GIB:.1f} GiB grow with the {rehearsed} tokens of the heaviest "
            "microbatch"
        )
    if settings.dtype == "float32":
        return 'set model.dtype = "bfloat16": forward and backward then take half'
    if engine := held.get(Category.engine, 0):
        return (
            f'set engine.kind = "sglang" and engine.placement = "restart": {engine / GIB:.1f} GiB are the '
            "engine's copy of the weights and its KV, and a server has its place while the learner waits"
        )
    return (
        f"take more GPUs: {rest / GIB:.1f} GiB do not depend on the batch on each of {settings.ranks}; "
        "--world tries others"
    )


def _fewer_rows(peak: MemoryPeak, spare: float, engine: EngineMemory | None) -> str:
    """The number of rows whose KV fits; empty if activations take more than KV, or not even one row fits.

    spare: bytes of the GPU less those of the peak; below 0.
    """
    held = peak.by_category
    if engine is None or held.get(Category.engine, 0) < engine.weights + engine.kv:
        return ""
    rows = int(engine.rows * (engine.kv + spare) / engine.kv)
    if rows < 1 or (peak.act == "rl" and engine.kv < held.get(Category.activations, 0)):
        return ""
    turns = "" if peak.act == "decode" else ", or rl.max_staleness = 0, which gives the KV back for updates"
    return (
        f"set engine.max_running = {rows} or less{turns}: {engine.kv / GIB:.1f} GiB are KV of {engine.rows} "
        f"rows of {engine.tokens:,} tokens (rl.tasks_per_step, rl.rollouts_per_task and max_response_tokens "
        "of the stages lower it, too)"
    )


STATIC_FRACTION = 0.85
"""The default of SGLang's mem-fraction-static, if the recipe does not set it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCapacity:
    """One server. The learner is taken to give back all but its state before the server starts."""

    gpus: int
    held_by_learner: int
    """Bytes on each of its GPUs while it serves: state of the learner's rank, 0 with placement split."""
    weights: int
    """Bytes on each of its GPUs."""
    kv: int
    """Bytes on each of its GPUs; 0 or less: it does not start."""
    kv_tokens: int
    """The memory of the whole server."""
    mean: int
    """Trajectories of the mean length, prompt included."""
    longest: int
    """... of the longest."""


def server_kv_capacity(
    recipe: Recipe, size: ModelSize, *, memory_gib: float, state: int, lengths: Sequence[int]
) -> KvCapacity | None:
    """Room on a server's GPUs, as SGLang sizes its pool; None without a stage or GPUs for servers.

    Args:
        recipe: names the servers' GPUs, the placement and mem-fraction-static.
        size: of the model.
        memory_gib: of each GPU.
        state: bytes that a learner's rank holds between steps.
        lengths: tokens of each trajectory with its prompt; none without a stage.
    """
    engine = recipe.engine
    if isinstance(engine.replicas, int) or not lengths:
        return None
    gpus = len(engine.replicas[0])
    held = state if engine.placement == "restart" else 0
    free = (memory_gib - OVERHEAD_GIB) * GIB - held
    weights = size.dtype_bytes * size.parameters // gpus
    given = engine.args.get("mem-fraction-static", engine.args.get("mem_fraction_static", STATIC_FRACTION))
    kv = int(free * float(given)) - weights
    tokens = max(0, kv) * gpus // (size.kv_values_per_token * size.dtype_bytes)
    return KvCapacity(
        gpus=gpus,
        held_by_learner=held,
        weights=weights,
        kv=kv,
        kv_tokens=tokens,
        mean=int(tokens / (sum(lengths) / len(lengths))),
        longest=tokens // max(lengths),
    )
