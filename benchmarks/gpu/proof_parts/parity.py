"""Parity: row kernels and head against float64 on the same device, and the same bits every time.

Legend: N rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch
from gpu.cases import Case, RowLossOp, Rows, check, grid
from gpu.ways import through_logits
from torch import Tensor

from rocstar.kernels import torch_ops
from rocstar.kernels.configs import CANDIDATES, TABLE, LaunchConfig, arch_of
from rocstar.kernels.linear_loss import linear_loss
from rocstar.kernels.row_loss import RowLoss

from .part import Part, dtype_name
from .results import SEED, HeadError, Parity, Repeats, RowError

HEAD_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Tolerance relative to a gradient's norm. Half-precision logits cost as much in a plain implementation."""
HEAD_DTYPES = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
)
"""dtypes of hidden states and weight, and of the logits."""
HEAD_SHAPES = ((200, 64, 1000, 64), (257, 320, 4099, 100))
"""N, D, V, chunk rows."""
LARGE_HEAD = (1024, 1024, 151_936, 512)
REPEATS, TOY_REPEATS = 20, 2


def measure(part: Part) -> None:
    result: Parity = part.result
    ops = row_losses(part)
    result.configs = list(ops)
    check_rows(part, ops)
    shapes = (*HEAD_SHAPES, *([LARGE_HEAD] * part.on_device))
    for (dtype, head_dtype), shape in itertools.product(HEAD_DTYPES, shapes):
        result.head.append(head_error(part, dtype, head_dtype, shape))
        result.head_error_over_tolerance = max(row.error_over_tolerance for row in result.head)
        part.save()
    for what, once in repeated(part, ops).items():
        runs = REPEATS if part.on_device else TOY_REPEATS
        result.repeats.append(Repeats(what=what, runs=runs, differing=differing(once, runs)))
        part.save()
    result.differing_runs = sum(row.differing for row in result.repeats)
    part.save()


def launch_configs(device: torch.device) -> list[LaunchConfig]:
    """All that the table and a benchmark may launch on this device."""
    arch = arch_of(device)
    return list(dict.fromkeys([*(config for _, config in TABLE[arch]), *CANDIDATES[arch]]))


def config_name(config: LaunchConfig) -> str:
    return f"{config.block}/{config.num_warps}"


def row_losses(part: Part) -> dict[str, RowLossOp]:
    """The implementation under test, once per launch config."""
    if not part.on_device:
        return {"torch": torch_ops.row_loss_}
    from rocstar.kernels import triton_ops

    return {
        config_name(config): functools.partial(triton_ops.row_loss_, config=config)
        for config in launch_configs(part.device)
    }


def check_rows(part: Part, ops: dict[str, RowLossOp]) -> None:
    """Every config over the grid of cases.py and over vocabularies of real size."""
    result: Parity = part.result
    vocabularies = (151_936, 151_937) if part.on_device else (1501,)
    large = itertools.product(vocabularies, (torch.bfloat16, torch.float32))
    cases = [
        *grid(half=True),
        Case(dtype=torch.float16),
        *(Case(vocabulary=vocabulary, dtype=dtype, num_rows=16) for vocabulary, dtype in large),
    ]
    result.cases, result.row_failures = len(cases), []
    worst: dict[tuple[str, str], float] = {}
    for name, row_loss_ in ops.items():
        for case in cases:
            try:
                errors = check(row_loss_, case, device=part.device)
            except AssertionError as error:
                result.row_failures.append(f"config {name}: {error}")
                continue
            for output, error_size in errors.items():
                key = dtype_name(case.dtype), output
                worst[key] = max(worst.get(key, 0.0), error_size)
        result.rows = [RowError(dtype=d, output=o, error=error) for (d, o), error in worst.items()]
        part.save()


def head_error(part: Part, dtype: torch.dtype, head_dtype: torch.dtype, shape: tuple[int, int, int, int]) -> HeadError:
    """`linear_loss` in these types at one shape against float64."""
    num_rows, size, vocabulary, chunk_rows = shape
    device, generator = part.device, torch.Generator(part.device).manual_seed(SEED)

    def normal(*of: int) -> Tensor:
        return torch.randn(*of, device=device, generator=generator)

    hidden = normal(num_rows, size).to(dtype).requires_grad_(True)
    weight = (normal(vocabulary, size) / size**0.5).to(dtype).requires_grad_(True)
    rows = Rows(
        ids_N=torch.randint(0, vocabulary, (num_rows,), device=device, generator=generator),
        weights_N=torch.full((num_rows,), 1 / num_rows, device=device),
        advantages_N=normal(num_rows),
    )
    loss, found = linear_loss(hidden, weight, rows.ids_N, rows.loss_of, chunk_rows=chunk_rows, head_dtype=head_dtype)
    got = torch.autograd.grad(loss, (hidden, weight))
    wide = [tensor.detach().double().requires_grad_(True) for tensor in (hidden, weight)]
    wanted = torch.autograd.grad(through_logits(*wide, rows), wide)
    with torch.no_grad():
        exact_N = torch.log_softmax(wide[0] @ wide[1].T, dim=-1).gather(1, rows.ids_N[:, None])[:, 0]
    errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, wanted, strict=True)]
    return HeadError(
        dtype=dtype_name(dtype), head_dtype=dtype_name(head_dtype),
        tokens=num_rows, hidden=size, vocabulary=vocabulary,
        logprob=float((found.logprobs_N.double() - exact_N).abs().max()),
        hidden_gradient=errors[0], weight_gradient=errors[1],
        error_over_tolerance=max(errors) / HEAD_TOLERANCE[dtype],
    )  # fmt: skip


def repeated(part: Part, ops: dict[str, RowLossOp]) -> dict[str, Callable[[], list[Tensor]]]:
    """Run repeatedly: every config of the row kernels, and the head."""
    vocabulary, num_rows, size = (151_936, 16_384, 896) if part.on_device else (500, 96, 8)
    logits, rows = Case(vocabulary=vocabulary, dtype=torch.bfloat16, num_rows=512).build(part.device)

    def kernel(row_loss_: RowLossOp) -> list[Tensor]:
        own = logits.clone()
        found = row_loss_(own, rows.ids_N, rows.loss_of, temperature=1.0, grad=True)
        return [own, *(getattr(found, field) for field in RowLoss.__slots__)]

    generator = part.generator()
    hidden, weight = (
        torch.randn(n, size, device=part.device, generator=generator).bfloat16().requires_grad_(True)
        for n in (num_rows, vocabulary)
    )
    ids_N = torch.randint(0, vocabulary, (num_rows,), device=part.device, generator=generator)

    def head() -> list[Tensor]:
        loss, _ = linear_loss(hidden, weight, ids_N, lambda logprobs_C, _: -logprobs_C)
        return [*torch.autograd.grad(loss, (hidden, weight)), loss.detach()]

    kernels = {f"row kernels {name}": functools.partial(kernel, op) for name, op in ops.items()}
    return {**kernels, "linear_loss": head}


def differing(once: Callable[[], list[Tensor]], runs: int) -> int:
    """How many of `runs` runs differ in a bit from the first."""
    first = [tensor.clone() for tensor in once()]
    return sum(not all(torch.equal(bits(a), bits(b)) for a, b in zip(first, once(), strict=True)) for _ in range(runs))


def bits(tensor: Tensor) -> Tensor:
    """NaN is not equal to itself; its bits are."""
    return tensor.contiguous().view(-1).view(torch.uint8)
