"""Compile the kernels of layers.py for every architecture of aot.py, without a GPU, and read the counts.

    python benchmarks/gpu/aot_layers.py [--full] [--json]

As aot.py: no scratch memory, no spilled register, 16-byte loads and stores, at most 1024 threads. Nothing is
executed. A kernel that makes a weight's gradient starts all of its programs at once, so they must have
registers for that.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import triton
from aot import TARGETS, Counts, compile_kernel

from rocstar.kernels import triton_layers
from rocstar.kernels.configs import Arch

SIZES = (128, 1024, 2048, 2560, 4096, 5120, 8192)
"""Heads, and hidden sizes from 0.6B to 70B."""
HEAD_SIZES = (64, 128, 256)
UNIT_REGISTERS = {32: 1 << 16, 64: 1 << 17}
"""Vector registers of a multiprocessor, by warp size, 4 bytes each."""
ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
FLOATS = ("eps", "sign")
WIDE = ("partial_ptr",)
"""float32 whatever the tensors are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Counts):
    """The counts of one variant."""

    arch: Arch
    kernel: str
    dtype: str
    size: int
    unit_registers: int
    """Registers of the programs that a multiprocessor gets at once; 0 if that is not bounded."""

    def complaints(self) -> list[str]:
        """Why this variant must not ship; empty if it may."""
        found = self.problems(stores=self.kernel != "sum_rows")
        most = UNIT_REGISTERS[TARGETS[self.arch].warp_size]
        if self.unit_registers > most:
            found.append(f"{self.unit_registers} registers of a multiprocessor, more than {most}")
        return found


def variants(warp_size: int, item_bytes: int) -> Iterator[tuple[str, int, dict[str, int | bool], int]]:
    """(kernel, size, constants, warps)"""
    for size in SIZES:
        tile = triton_layers.tile_of(size, item_bytes, warp_size)
        shape = {"ROWS": tile.rows, "BLOCK": tile.block, "D": size}
        yield "norm", size, shape, tile.num_warps
        for adds in (False, True):
            yield "norm_grad", size, {**shape, "ADDS": adds}, tile.num_warps
    for size in HEAD_SIZES:
        tile = triton_layers.tile_of(size, item_bytes, warp_size)
        shape = {"ROWS": tile.rows, "BLOCK": tile.block // 2, "HALF": size // 2, "H": 8}
        for norm in (False, True):
            yield "norm_rotate", size, {**shape, "NORM": norm}, tile.num_warps
        yield "norm_rotate_grad", size, shape, tile.num_warps
    gated = {"BLOCK": triton_layers.GATED_BLOCK}
    for kernel in ("gated", "gated_grad"):
        yield kernel, 0, gated, triton_layers.GATED_WARPS[warp_size]
    columns = {"ROWS": triton_layers.SUM_ROWS, "COLUMNS": triton_layers.SUM_COLUMNS}
    yield "sum_rows", 0, columns, triton_layers.SUM_WARPS


def compile_all(dtypes: tuple[str, ...]) -> Iterator[Report]:
    for (arch, target), dtype in itertools.product(TARGETS.items(), dtypes):
        for kernel, size, constants, num_warps in variants(target.warp_size, ITEM_BYTES[dtype]):
            counts, at_once = _counts_of(kernel, constants, num_warps, dtype, target), 0
            if kernel in ("norm_grad", "norm_rotate_grad"):
                tile = triton_layers.tile_of(size, ITEM_BYTES[dtype], target.warp_size)
                granted = -(-(counts["registers"] + counts["accumulators"]) // 8) * 8
                at_once = tile.per_unit * counts["threads"] * granted
            yield Report(arch=arch, kernel=kernel, dtype=dtype, size=size, unit_registers=at_once, **counts)


def _counts_of(
    kernel: str, constants: dict[str, int | bool], num_warps: int, dtype: str, target: Any
) -> dict[str, int]:
    function = getattr(triton_layers, f"{kernel}_kernel")
    names: list[str] = function.arg_names
    types = {name: _type_of(name, dtype, constants) for name in names}
    # Allocations of torch are aligned, and so is each row; the numbers of rows are any.
    aligned = [name for name in names if types[name] in ("i32", f"*{dtype}", "*fp32")]
    aligned = [name for name in aligned if name not in ("N", "P") or kernel.startswith("gated")]
    return compile_kernel(function, types, constants, aligned, num_warps, target)[1]


def _type_of(name: str, dtype: str, constants: dict[str, int | bool]) -> str:
    if name in constants:
        return "constexpr"
    if name.endswith("_ptr"):
        return "*fp32" if name in WIDE else f"*{dtype}"
    return "fp32" if name in FLOATS else "i32"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="float16 and float32 too")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")
    options = parser.parse_args()
    if triton.knobs.runtime.interpret:
        print("aot_layers: TRITON_INTERPRET is set, so nothing can be compiled; unset it", file=sys.stderr)
        return 2
    reports = list(compile_all(("bf16", "fp16", "fp32") if options.full else ("bf16",)))
    bad = [report for report in reports if report.complaints()]
    if options.json:
        print(json.dumps([{**asdict(report), "complaints": report.complaints()} for report in reports]))
    else:
        print(f"triton {triton.__version__}")
        for r in reports:
            print(
                f"{r.arch:7}{r.kernel:17}{r.dtype:5}{r.size:6} {r.threads:4} threads {r.registers:4} regs"
                f"  ld16 {r.loads_16_bytes:2}  st16 {r.stores_16_bytes:2}  {', '.join(r.complaints())}"
            )
        print(f"{len(reports)} variants compiled, {len(bad)} with complaints; none was executed")
    for report in bad:
        print(f"{report}: {', '.join(report.complaints())}", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
