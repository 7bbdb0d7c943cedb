"""Compile every kernel of the table for gfx942, gfx950 and sm_90, without a GPU, and check the code.

    python benchmarks/gpu/aot.py [--table] [--full] [--json]

Compilers, assemblers and device libraries of both vendors are inside the triton package. Each variant must
have no scratch memory, no spilled register, 16-byte loads, and at most 1024 threads: a launch with more fails
on a device only, and a logits row read two bytes at a time is eight times the memory instructions.

The last column is instructions of a thread per logit, in the loop over whole blocks; MOST_INSTRUCTIONS bounds
it. 132 SMs of sm_90 that issue for 128 lanes per clock at 1.7 GHz read bfloat16 logits at 2.9 TB/s with 20
instructions each: less than the memory gives.

This shows that the code compiles well. It does not show that it is right or fast on a device.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rocstar.kernels import triton_ops
from rocstar.kernels.configs import CANDIDATES, MAX_THREADS, TABLE, Arch, LaunchConfig

TARGETS: dict[Arch, GPUTarget] = {
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
    "sm_90": GPUTarget("cuda", 90, 32),
}
KERNELS = ("row_stats", "grad", "grad_entropy")
MOST_INSTRUCTIONS: dict[str, dict[Arch, int]] = {
    "row_stats": {"gfx942": 14, "gfx950": 14, "sm_90": 12},
    "grad": {"gfx942": 15, "gfx950": 15, "sm_90": 14},
    "grad_entropy": {"gfx942": 17, "gfx950": 17, "sm_90": 16},
}
"""Per logit: above them the kernel waits for its own arithmetic and not for memory."""
POINTERS = {"ids_ptr": "*i64"}
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
INTEGERS = ("d_stride", "stride", "V")
ALIGNED_INTEGERS = ("d_stride", "stride")  # `linear_loss` pads the rows of its buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One thing to compile. `aligned`: the vocabulary is a multiple of 16, which triton specialises on.

    grad_entropy is grad_kernel with an entropy term.
    """

    arch: Arch
    kernel: str
    config: LaunchConfig
    dtype: str = "bf16"
    """dtypes of the logits and of their gradient."""
    gradient_dtype: str | None = None
    """dtypes of the gradient if it differs: float32 logits of a half-precision model."""
    aligned: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of the assembler for one kernel. Registers, spills and scratch are per thread."""

    threads: int
    registers: int
    accumulators: int
    """Matrix registers of gfx942; a vector register spilled into one shows as a spill."""
    spills: int
    scratch_bytes: int
    loads_16_bytes: int
    stores_16_bytes: int
    binary_bytes: int

    def problems(self, *, stores: bool) -> list[str]:
        """Why this kernel must not ship; empty if it may. `stores`: it stores 16 bytes at a time."""
        problems = {
            f"{self.threads} threads, more than {MAX_THREADS}": self.threads > MAX_THREADS,
            f"{self.scratch_bytes} bytes of scratch": self.scratch_bytes > 0,
            f"{self.spills} spills": self.spills > 0,
            "no 16-byte load": not self.loads_16_bytes,
            "no 16-byte store": stores and not self.stores_16_bytes,
            "no binary": not self.binary_bytes,
        }
        return [text for text, is_true in problems.items() if is_true]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Counts):
    """The counts of one variant. `instructions_per_logit`: see the function."""

    variant: Variant
    shared_bytes: int
    instructions_per_logit: float | None

    def complaints(self) -> list[str]:
        """Why this variant must not ship; empty if it may."""
        found = self.problems(stores=self.variant.kernel != "row_stats")
        found_per_logit, most = self.instructions_per_logit, MOST_INSTRUCTIONS[self.variant.kernel]
        if found_per_logit is not None and found_per_logit > most[self.variant.arch]:
            found.append(f"{found_per_logit:.1f} instructions per logit, more than {most[self.variant.arch]}")
        return found


def variants(*, full: bool = False, candidates: bool = True) -> Iterator[Variant]:
    """Every config of the table and every candidate for every kernel; `full`: in float16 and float32 too."""
    for arch in TARGETS:
        entries = [config for _, config in (*TABLE[arch], *TABLE["fallback"])]
        configs = dict.fromkeys([*entries, *(CANDIDATES[arch] if candidates else ())])
        dtypes = ("bf16", "fp16", "fp32") if full else ("bf16",)
        for config, kernel, dtype, aligned in itertools.product(configs, KERNELS, dtypes, (True, False)):
            yield Variant(arch=arch, kernel=kernel, config=config, dtype=dtype, aligned=aligned)
        if not full:
            for config, kernel in itertools.product(dict.fromkeys(entries), KERNELS):
                yield Variant(arch=arch, kernel=kernel, config=config, dtype="fp32")
        for config, aligned in itertools.product(dict.fromkeys(entries), (True, False)):
            yield Variant(
                arch=arch, kernel="grad", config=config, dtype="fp32", gradient_dtype="bf16", aligned=aligned
            )


def compile_variant(variant: Variant) -> Report:
    """Compile one variant to the binary of its architecture and read the assembler's own counts."""
    kernel = getattr(triton_ops, f"{variant.kernel.removesuffix('_entropy')}_kernel")
    names: list[str] = kernel.arg_names
    constants: dict[str, Any] = {"BLOCK": variant.config.block}
    if variant.kernel != "row_stats":
        constants["HAS_ENTROPY"] = variant.kernel == "grad_entropy"
    signature = {name: _type_of(name, variant, constants) for name in names}
    # Allocations of torch are aligned.
    aligned = {name for name in names if name.endswith("_ptr") or name in ALIGNED_INTEGERS}
    if variant.aligned:
        aligned.add("V")
    target = TARGETS[variant.arch]
    compiled, counts = compile_kernel(kernel, signature, constants, aligned, variant.config.num_warps, target)
    is_amd = target.backend == "hip"
    lines = compiled.asm["amdgcn"].splitlines() if is_amd else _sass(compiled.asm["cubin"])
    return Report(
        variant=variant,
        shared_bytes=compiled.metadata.shared,
        instructions_per_logit=instructions_per_logit(lines, BYTES[variant.dtype]),
        **counts,
    )


def compile_kernel(
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    aligned: Collection[str],
    num_warps: int,
    target: GPUTarget,
) -> tuple[Any, dict[str, int]]:
    """Compile a kernel. Return it and the fields of `Counts`. `aligned`: arguments that 16 divides."""
    place = kernel.arg_names.index
    source = ASTSource(
        fn=kernel,
        signature=types,
        constexprs={(place(name),): value for name, value in constants.items()},
        attrs={(place(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(source, target=target, options={"num_warps": num_warps})
    is_amd = target.backend == "hip"
    counts = _amd_counts(compiled) if is_amd else _nvidia_counts(compiled, target.arch)
    return compiled, {"threads": num_warps * target.warp_size, **counts}


def _type_of(name: str, variant: Variant, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    if name == "x_ptr":
        return f"*{variant.dtype}"
    if name == "d_ptr":
        return f"*{variant.gradient_dtype or variant.dtype}"
    if name.endswith("_ptr"):
        return POINTERS.get(name, "*fp32")
    return "i32" if name in INTEGERS else "fp32"


def _amd_counts(compiled: Any) -> dict[str, int]:
    text = compiled.asm["amdgcn"]

    def field(name: str) -> int:
        return int(_only(rf"\.{name}:\s*(\d+)", text))

    return {
        "registers": field("vgpr_count"),
        "accumulators": field("agpr_count"),
        "spills": field("vgpr_spill_count") + field("sgpr_spill_count"),
        "scratch_bytes": field("private_segment_fixed_size"),
        "loads_16_bytes": len(re.findall(r"(?:global|buffer)_load_dwordx4", text)),
        "stores_16_bytes": len(re.findall(r"(?:global|buffer)_store_dwordx4", text)),
        "binary_bytes": len(compiled.asm["hsaco"]),
    }


def _nvidia_counts(compiled: Any, capability: Any) -> dict[str, int]:
    from triton.backends.nvidia.compiler import get_ptxas  # it knows which of the bundled assemblers fits

    text = compiled.asm["ptx"]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        options = ["-v", f"--gpu-name=sm_{capability}a", file.name, "-o", "/dev/null"]
        command = [get_ptxas(capability).path, *options]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr
    spilled = int(_only(r"(\d+) bytes spill stores", said)) + int(_only(r"(\d+) bytes spill loads", said))
    return {
        "registers": int(_only(r"Used (\d+) registers", said)),
        "accumulators": 0,
        "spills": spilled,
        "scratch_bytes": int(_only(r"(\d+) bytes stack frame", said)),
        "loads_16_bytes": len(re.findall(r"ld\.global\S*\.v4\.b32", text)),
        "stores_16_bytes": len(re.findall(r"st\.global\S*\.v4\.b32", text)),
        "binary_bytes": len(compiled.asm["cubin"]),
    }


def _only(pattern: str, text: str) -> str:
    """The first match. Silence of an assembler must never be read as 'no spills'."""
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"the assembler did not report {pattern!r}")
    return found.group(1)


def _sass(cubin: bytes) -> list[str]:
    """The machine code of an NVIDIA kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()


_LABEL = re.compile(r"\s*(\.L_x_\d+|\.LBB\w+):")
_INSTRUCTION = re.compile(r"\s*(?:/\*[0-9a-f]+\*/\s+(.*?)\s*;|([a-z]\w+(?:\s.*)?)$)")  # SASS, or amdgcn
_BRANCH = re.compile(r"(?:\bBRA\b.*`\((\.L_x_\d+)\)|\bs_c?branch\w*\s+(\.LBB\w+))")
_LOAD_16 = re.compile(r"\bLDG\S*\.128\b|\b(?:global|buffer)_load_dwordx4\b")


def instructions_per_logit(lines: Sequence[str], logit_bytes: int) -> float | None:
    """Instructions of a thread in the loop over whole blocks, over the logits of its 16-byte loads.

    None if no loop has such loads.

    Args:
        lines: disassembled SASS, or amdgcn.
        logit_bytes: size of one logit.
    """
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in lines:
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif instruction := _INSTRUCTION.match(line):
            instructions.append(instruction[1] or instruction[2])
    for last, instruction in enumerate(instructions):
        branch = _BRANCH.search(instruction)
        first = labels.get(branch[1] or branch[2], last) if branch else last
        loads = sum(bool(_LOAD_16.search(one)) for one in instructions[first : last + 1])
        if first < last and loads:
            return (last + 1 - first) * logit_bytes / (16 * loads)
    return None


def table(reports: list[Report]) -> str:
    """One line per variant: the register table."""
    lines = [
        f"{'arch':7}{'kernel':13}{'block':>6}{'warps':>6} {'dtype':10}{'V%16':6}"
        f"{'regs':>5}{'acc':>4}{'spills':>7}{'scratch':>8}{'shared':>7}{'ld16':>5}{'st16':>5}{'bytes':>7}{'i/logit':>8}"
    ]
    for r in reports:
        v = r.variant
        lines.append(
            f"{v.arch:7}{v.kernel:13}{v.config.block:6}{v.config.num_warps:6} "
            f"{v.dtype + ('>' + v.gradient_dtype if v.gradient_dtype else ''):10}"
            f"{'=0' if v.aligned else 'any':6}{r.registers:5}{r.accumulators:4}{r.spills:7}"
            f"{r.scratch_bytes:8}{r.shared_bytes:7}{r.loads_16_bytes:5}{r.stores_16_bytes:5}{r.binary_bytes:7}"
            + ("-" if r.instructions_per_logit is None else f"{r.instructions_per_logit:.1f}").rjust(8)
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="without the extra configs of benchmarks")
    parser.add_argument("--full", action="store_true", help="float16 and float32 too: minutes")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")
    options = parser.parse_args()
    if triton_ops.INTERPRETED:
        print("aot: TRITON_INTERPRET is set, so nothing can be compiled; unset it", file=sys.stderr)
        return 2
    reports = [compile_variant(variant) for variant in variants(full=options.full, candidates=not options.table)]
    bad = [(report.variant, report.complaints()) for report in reports if report.complaints()]
    if options.json:
        print(json.dumps([{**asdict(report), "complaints": report.complaints()} for report in reports]))
    else:
        print(f"triton {triton.__version__}")
        print(table(reports))
        print(f"{len(reports)} variants compiled, {len(bad)} with complaints; none was executed")
    for variant, complaints in bad:
        print(f"{variant}: {', '.join(complaints)}", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
