"""The fused loss on a GPU: is it right, is it free of races, how near is it to what the device can do.

    python benchmarks/gpu/bench_kernels.py              with a CUDA or ROCm device, under 8 minutes
    python benchmarks/gpu/bench_kernels.py --dry-run    on a CPU, tiny shapes: does the script work at all

In this order, and a failure of 1 or 2 ends the run before anything is timed:

    1 check     every launch config against the definition in float64 over the grid of cases.py
    2 races     the same input again and again: all outputs equal bit for bit
    3 ceilings  bytes per second of a copy, FLOP per second of the head's GEMM, on this device
    4 logits    the kernels alone, forward and with gradient, per config
    5 linear    linear_loss at the shapes of a 14B and a 0.5B head, per chunk size
    6 peers     the same loss by the other implementations of ways.py

Floors: 2 bytes per logit forward and 6 with gradient (read; read and write), 6NDV FLOP for the whole head.
Sections 4 to 6 stop when the time is used up and say what they left out. Times are medians, of device events.

Legend: N rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu.cases import GRADIENT_TOLERANCE, Case, RowLossOp, Rows, check, grid
from gpu.ways import Peer, through_logits
from gpu.ways import peers as other_ways
from sandbox_bench.report import ROOT, bar, finish

from rocstar.kernels import torch_ops
from rocstar.kernels.configs import CANDIDATES, TABLE, LaunchConfig, arch_of
from rocstar.kernels.linear_loss import linear_loss
from rocstar.kernels.row_loss import RowLoss

RACE_REPEATS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run: the real thing, or a dry run."""

    device: torch.device
    rows: int
    kernel_rows: int
    vocabulary: int
    heads: dict[str, int]
    """Hidden size by name of the model."""
    chunks: tuple[int | None, ...]
    """None: what linear_loss takes by itself."""
    repeats: int
    deadline: float
    dtype: torch.dtype = torch.bfloat16

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def out_of_time(self, needs_s: float = 0.0) -> bool:
        return time.monotonic() + needs_s > self.deadline


def plan(options: argparse.Namespace) -> Plan:
    deadline = time.monotonic() + 60 * options.minutes
    if options.dry_run:
        return Plan(
            device=torch.device("cpu"), rows=96, kernel_rows=64, vocabulary=500, heads={"14B": 24, "0.5B": 8},
            chunks=(None, 16, 96), repeats=2, deadline=deadline,
        )  # fmt: skip
    return Plan(
        device=torch.device("cuda"), rows=16384, kernel_rows=4096, vocabulary=151936,
        heads={"14B": 5120, "0.5B": 896}, chunks=(None, 1024, 4096, 16384), repeats=7,
        deadline=deadline,
    )  # fmt: skip


# ---- clocks and memory ----


def milliseconds(plan: Plan, action: Callable[[], object], repeats: int | None = None) -> float:
    """Median time of `action` on the device, after one run that compiles and warms up."""
    action()
    times = []
    for _ in range(repeats or plan.repeats):
        if not plan.on_gpu:
            begun = time.perf_counter()
            action()
            times.append(1e3 * (time.perf_counter() - begun))
            continue
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        action()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return median(times)


def peak_bytes(plan: Plan, action: Callable[[], object]) -> int | None:
    """The most memory that torch held above what it held before; None without a GPU."""
    if not plan.on_gpu:
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    action()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


# ---- 1 and 2: right, and the same every time ----


def launch_configs(plan: Plan) -> list[LaunchConfig]:
    arch = arch_of(plan.device)
    table = [config for _, config in TABLE[arch]]
    return list(dict.fromkeys([*table, *CANDIDATES[arch]])) if plan.on_gpu else []


def row_losses(plan: Plan) -> dict[str, RowLossOp]:
    """The implementation under test, once per launch config."""
    if not plan.on_gpu:
        return {"torch": torch_ops.row_loss_}
    from rocstar.kernels import triton_ops

    return {
        f"{config.block}/{config.num_warps}": functools.partial(triton_ops.row_loss_, config=config)
        for config in launch_configs(plan)
    }


def check_everything(plan: Plan) -> dict[str, Any]:
    """Raises AssertionError at the first number that is off."""
    worst: dict[str, float] = {}
    cases = [*grid(), Case(vocabulary=plan.vocabulary, dtype=plan.dtype, num_rows=64)]
    for row_loss_ in row_losses(plan).values():
        for case in cases:
            found = check(row_loss_, case, device=plan.device, tolerance=GRADIENT_TOLERANCE)
            for name, error in found.items():
                key = f"{str(case.dtype).removeprefix('torch.')} {name}"
                worst[key] = max(worst.get(key, 0.0), error)
    return {"cases": len(cases), "worst": worst, "linear": check_linear(plan)}


def check_linear(plan: Plan) -> dict[str, float]:
    """linear_loss in the type of the benchmark against float64 autograd through all logits."""
    hidden, weight, tokens = inputs(plan, rows=200, size=64, vocabulary=1000)
    loss, _ = linear_loss(hidden, weight, tokens.ids_N, tokens.loss_of, chunk_rows=64)
    got = torch.autograd.grad(loss, (hidden, weight))
    wide = [tensor.detach().double().requires_grad_(True) for tensor in (hidden, weight)]
    wanted = torch.autograd.grad(through_logits(*wide, tokens), wide)
    errors = {
        name: float((a.double() - b).norm() / b.norm())
        for name, a, b in zip(("hidden", "weight"), got, wanted, strict=True)
    }
    if max(errors.values()) > 2e-2:  # bfloat16 logits: the naive path in bfloat16 is as far off
        raise AssertionError(f"linear_loss is off: {errors}")
    return errors


def count_races(plan: Plan) -> dict[str, int]:
    """Runs whose outputs differ in a bit from those of the first run, by what ran."""
    found = {}
    for name, row_loss_ in row_losses(plan).items():
        logits, tokens = Case(vocabulary=plan.vocabulary, dtype=plan.dtype, num_rows=512).build(plan.device)

        def once(run: RowLossOp = row_loss_, x: Tensor = logits, t: Rows = tokens) -> list[Tensor]:
            own = x.clone()
            found = run(own, t.ids_N, t.loss_of, temperature=1.0, grad=True)
            return [own, *(getattr(found, field) for field in RowLoss.__slots__)]

        found[f"kernel {name}"] = differing(once, RACE_REPEATS if plan.on_gpu else 2)
    hidden, weight, tokens = inputs(plan, rows=plan.rows, size=plan.heads["0.5B"], vocabulary=plan.vocabulary)
    found["linear"] = differing(
        lambda: forward_backward(plan, hidden, weight, tokens), 5 if plan.on_gpu else 2
    )
    if any(found.values()):
        raise AssertionError(f"outputs differ between runs of the same input: {found}")
    return found


def differing(once: Callable[[], list[Tensor]], repeats: int) -> int:
    first = [tensor.clone() for tensor in once()]
    return sum(
        not all(torch.equal(bits(a), bits(b)) for a, b in zip(first, once(), strict=True))
        for _ in range(repeats)
    )


def bits(tensor: Tensor) -> Tensor:
    """NaN is not equal to itself; its bits are."""
    return tensor.contiguous().view(-1).view(torch.uint8)


# ---- what runs ----


def inputs(plan: Plan, *, rows: int, size: int, vocabulary: int) -> tuple[Tensor, Tensor, Rows]:
    generator = torch.Generator(plan.device).manual_seed(7)
    options: dict[str, Any] = {"generator": generator, "device": plan.device}
    hidden = torch.randn(rows, size, **options).to(plan.dtype).requires_grad_(True)
    weight = (torch.randn(vocabulary, size, **options) / size**0.5).to(plan.dtype).requires_grad_(True)
    tokens = Rows(
        ids_N=torch.randint(0, vocabulary, (rows,), **options),
        weights_N=torch.full((rows,), 1 / rows, device=plan.device),
        advantages_N=torch.randn(rows, **options),
    )
    return hidden, weight, tokens


def forward_backward(
    plan: Plan, hidden: Tensor, weight: Tensor, tokens: Rows, chunk_rows: int | None = None
) -> list[Tensor]:
    loss, _ = linear_loss(
        hidden, weight, tokens.ids_N, tokens.loss_of, chunk_rows=chunk_rows, grad_output=1.0
    )
    return [*torch.autograd.grad(loss, (hidden, weight)), loss.detach()]


# ---- 3 to 6: how fast ----


def ceilings(plan: Plan) -> dict[str, float]:
    size = 1 << 30 if plan.on_gpu else 1 << 16
    source = torch.empty(size, dtype=torch.bfloat16, device=plan.device)
    target = torch.empty_like(source)
    copy_ms = milliseconds(plan, lambda: target.copy_(source))
    found = {"copy_bytes_per_s": 2 * source.nbytes / copy_ms * 1e3}
    for name, size in plan.heads.items():
        hidden, weight, _ = inputs(plan, rows=plan.kernel_rows, size=size, vocabulary=plan.vocabulary)
        with torch.no_grad():
            gemm_ms = milliseconds(plan, lambda a=hidden, b=weight: a @ b.T)
        found[f"gemm_flop_per_s {name}"] = 2 * plan.kernel_rows * size * plan.vocabulary / gemm_ms * 1e3
    return found


def logits_kernel(plan: Plan, bytes_per_s: float) -> list[dict[str, Any]]:
    rows = []
    generator = torch.Generator(plan.device).manual_seed(1)
    shape = (plan.kernel_rows, plan.vocabulary)
    logits = torch.randn(shape, generator=generator, device=plan.device).to(plan.dtype)
    _, _, tokens = inputs(plan, rows=plan.kernel_rows, size=1, vocabulary=plan.vocabulary)
    for name, row_loss_ in row_losses(plan).items():
        for grad in (False, True):
            if plan.out_of_time(10):
                return [*rows, {"left_out": f"{name} grad={grad} and what follows"}]
            run = functools.partial(
                row_loss_, logits, tokens.ids_N, tokens.loss_of, temperature=1.0, grad=grad
            )
            took = milliseconds(plan, run)
            floor = (6 if grad else 2) * logits.numel() / bytes_per_s * 1e3
            row = {"config": name, "grad": grad, "ms": took, "floor_ms": floor}
            rows.append(row | {"over_floor": took / floor})
    return rows


def linear(plan: Plan, flop_per_s: dict[str, float]) -> list[dict[str, Any]]:
    rows = []
    for name, size in plan.heads.items():
        given = inputs(plan, rows=plan.rows, size=size, vocabulary=plan.vocabulary)
        for chunk in plan.chunks:
            if plan.out_of_time(15):
                return [*rows, {"left_out": f"{name} chunk={chunk} and what follows"}]
            run = functools.partial(forward_backward, plan, *given, chunk)
            took = milliseconds(plan, run)
            floor = 6 * plan.rows * size * plan.vocabulary / flop_per_s[name] * 1e3
            row = {"head": name, "chunk": chunk, "ms": took, "floor_ms": floor}
            rows.append(row | {"over_floor": took / floor, "peak_bytes": peak_bytes(plan, run)})
    return rows


def ours(h: Tensor, w: Tensor, ids_N: Tensor, rows: Rows) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The fused loss, as the other ways are called."""
    loss, _ = linear_loss(h, w, ids_N, rows.loss_of, grad_output=1.0)
    dh, dw = torch.autograd.grad(loss, (h, w))
    return loss.detach(), (dh, dw)


def peers(plan: Plan) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, size in plan.heads.items():
        given = inputs(plan, rows=plan.rows, size=size, vocabulary=plan.vocabulary)
        hidden, weight, tokens = given
        for peer in [Peer(name="rocstar", run=ours), *other_ways(on_gpu=plan.on_gpu)]:
            row: dict[str, Any] = {"head": name, "way": peer.name}
            if peer.skipped or plan.out_of_time(45):
                rows.append(row | {"left_out": peer.skipped or "out of time"})
                continue
            run = functools.partial(peer.run, hidden, weight, tokens.ids_N, tokens)
            try:
                row |= {"ms": milliseconds(plan, run, repeats=3), "peak_bytes": peak_bytes(plan, run)}
            except torch.OutOfMemoryError:
                row["left_out"] = "out of memory"
            rows.append(row)
    return rows


# ---- the whole ----


def bars(plan: Plan, result: dict[str, Any]) -> list[dict[str, Any]]:
    """The targets on a device; a dry run has none."""
    if not plan.on_gpu:
        return []
    found = []
    kernel = [r for r in result["logits"] if r.get("grad")]
    if kernel:
        found.append(bar("kernel over its floor", min(r["over_floor"] for r in kernel), 1.25, at_most=True))
    at_14b = [r for r in result["linear"] if r.get("head") == "14B" and "chunk" in r and r["chunk"] is None]
    if at_14b:
        found.append(bar("14B linear over its floor", at_14b[0]["over_floor"], 1.15, at_most=True))
    rows = {r["way"]: r for r in result["peers"] if r["head"] == "14B" and "ms" in r}
    small = [r for r in result["linear"] if r.get("head") == "14B" and r.get("chunk") == 4096]
    if small and "naive torch" in rows:
        share = small[0]["peak_bytes"] / rows["naive torch"]["peak_bytes"]
        found.append(bar("14B peak memory over naive, chunks of 4096 rows", share, 0.1, at_most=True))
    best = min((r["ms"] for way, r in rows.items() if way != "rocstar"), default=None)
    if best is not None and "rocstar" in rows:
        found.append(bar("14B best peer over ours, time", best / rows["rocstar"]["ms"], 1.0, at_most=False))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--out", type=Path, default=None, help="default: benchmarks/results/kernels_gpu.json")
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        print("bench_kernels: torch sees no CUDA or ROCm device here; try --dry-run", file=sys.stderr)
        return 2
    todo = plan(options)
    about: dict[str, Any] = {
        "dry_run": options.dry_run,
        "arch": arch_of(todo.device),
        "torch": torch.__version__,
    }
    if todo.on_gpu:
        about["device"] = torch.cuda.get_device_name(todo.device)
    try:
        about["check"] = check_everything(todo)
        about["differing_runs"] = count_races(todo)
    except AssertionError as error:
        print(f"bench_kernels: {error}; nothing was timed", file=sys.stderr)
        return 1
    print(f"right and repeatable: {about['check']['worst']}")
    about["ceilings"] = ceilings(todo)
    about["logits"] = logits_kernel(todo, about["ceilings"]["copy_bytes_per_s"])
    speeds = {name: about["ceilings"][f"gemm_flop_per_s {name}"] for name in todo.heads}
    about["linear"] = linear(todo, speeds)
    about["peers"] = peers(todo)
    for section in ("logits", "linear", "peers"):
        for row in about[section]:
            print(section, {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    out = options.out or (None if options.dry_run else ROOT / "benchmarks" / "results" / "kernels_gpu.json")
    return finish("kernels", about, bars(todo, about), out)


if __name__ == "__main__":
    sys.exit(main())
