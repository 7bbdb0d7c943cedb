"""Every kernel of the table compiles for gfx942, gfx950 and sm_90 without a GPU, and the gate can close.

In processes of their own: other tests may have triton interpret, and then nothing compiles.
"""

import dataclasses
import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ..needs import is_set, package
from ..warm_python import warm

AOT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "aot.py"
AOT_LAYERS = AOT.with_name("aot_layers.py")

pytestmark = package("triton").unless(find_spec("triton") is not None)


def python(*arguments: str, **environment: object) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [str(warm().executable), *arguments],
        env={**kept, "PYTHONPATH": str(AOT.parent)} | {k: str(v) for k, v in environment.items()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def output(cache: Path, *arguments: str) -> str:
    """Run it with this cache of compiled kernels; it must succeed."""
    done = python(*arguments, TRITON_CACHE_DIR=cache)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    table = [] if is_set("ROCSTAR_SLOW_TESTS") else ["--table"]
    cache = tmp_path_factory.mktemp("triton")
    found: list[dict[str, Any]] = json.loads(output(cache, str(AOT), "--json", *table))
    return found


def test_every_entry_of_the_table_compiles_well(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert not report["complaints"], report
        assert report["scratch_bytes"] == report["spills"] == 0
        assert report["loads_16_bytes"] > 0 and report["binary_bytes"] > 0
        assert report["variant"]["config"]["num_warps"] * 64 <= 1024 or report["variant"]["arch"] == "sm_90"
        assert report["threads"] <= 1024


def test_nothing_of_the_table_is_left_out(reports: list[dict[str, Any]]) -> None:
    from rocstar.kernels.configs import TABLE

    for arch in ("gfx942", "gfx950", "sm_90"):
        configs = [dataclasses.asdict(config) for _, config in (*TABLE[arch], *TABLE["fallback"])]
        for kernel in ("row_stats", "grad", "grad_entropy"):
            of_all = [r["variant"] for r in reports]
            compiled = [v for v in of_all if (v["arch"], v["kernel"]) == (arch, kernel)]
            assert all(any(v["config"] == config for v in compiled) for config in configs)
            assert {v["aligned"] for v in compiled} == {True, False}


def test_instructions_per_logit(reports: list[dict[str, Any]]) -> None:
    """No more than what leaves the kernels bound by memory; `complaints` has the bars of all kernels."""
    bars = {"gfx942": 14, "gfx950": 14, "sm_90": 12}
    for report in reports:
        arch, kernel = report["variant"]["arch"], report["variant"]["kernel"]
        count = report["instructions_per_logit"]
        assert 5 < count < {"row_stats": bars[arch], "grad": 15, "grad_entropy": 17}[kernel], report


LOOP = """
import aot
sass = '''
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   FADD R4, R4, R5 ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
        /*0040*/                   EXIT ;
'''
amdgcn = '''
\ts_mov_b32 s0, 0
.LBB0_2:                                ; comment
\tglobal_load_dwordx4 v[0:3], v0, s[0:1]
\tv_add_f32_e32 v1, v1, v2
\ts_nop 0
\ts_cbranch_scc1 .LBB0_2
\ts_endpgm
'''
print([aot.instructions_per_logit(t.splitlines(), size) for t in (sass, amdgcn) for size in (2, 4)])
print(aot.instructions_per_logit(amdgcn.replace("dwordx4", "ushort").splitlines(), 2))
print(aot.compile_variant(aot.Variant(arch="gfx942", kernel="row_stats", config=aot.LaunchConfig(
    block=8192, num_warps=16))).complaints())
"""


def test_instructions_are_counted(tmp_path: Path) -> None:
    code = LOOP.replace("print(aot.compile", 'aot.MOST_INSTRUCTIONS["row_stats"]["gfx942"] = 5\nprint(aot.compile')
    counted, narrow, complaints = output(tmp_path, "-c", code).splitlines()
    assert counted == "[0.375, 0.75, 0.5, 1.0]" and narrow == "None"
    assert "instructions per logit, more than 5" in complaints


BAD = """
import json
from aot import Variant, compile_variant
from rocstar.kernels.configs import LaunchConfig
for arch, block, warps in {configs}:
    variant = Variant(arch=arch, kernel="row_stats", config=LaunchConfig(block=block, num_warps=warps))
    print(json.dumps(compile_variant(variant).complaints()))
"""


def test_the_gate_closes(tmp_path: Path) -> None:
    configs = [("gfx942", 131072, 4), ("sm_90", 65536, 4), ("gfx942", 8192, 32), ("gfx942", 1024, 4)]
    found = output(tmp_path, "-c", BAD.format(configs=configs)).splitlines()
    spilling, scratching, too_many, narrow = map(json.loads, found)
    assert any("spills" in complaint for complaint in spilling)
    assert any("bytes of scratch" in complaint for complaint in scratching)
    assert "2048 threads, more than 1024" in too_many
    assert "no 16-byte load" in narrow


SUM_READERS = """
import json
import aot
from rocstar.kernels import triton_rows
kernel, pointers = triton_rows.sum_readers_kernel, {"begins_ptr": "*i32", "readers_ptr": "*i32"}
names = kernel.arg_names
for arch in ("gfx942", "sm_90"):
    target = aot.TARGETS[arch]
    for width in (64, 128, 1024):
        block, num_warps = triton_rows.launch(width, target.warp_size)
        types = {n: pointers.get(n, "*bf16") if n.endswith("_ptr") else "i32" for n in names}
        # Parts of the one tensor of indexes begin anywhere.
        aligned = [n for n in names if n not in pointers and n != "BLOCK"]
        types["BLOCK"] = "constexpr"
        _, counts = aot.compile_kernel(kernel, types, {"BLOCK": block}, aligned, num_warps, target)
        print(json.dumps({"arch": arch, "width": width, **counts}))
"""


def test_the_sum_of_readers_compiles_without_spills(tmp_path: Path) -> None:
    reports = [json.loads(line) for line in output(tmp_path, "-c", SUM_READERS).splitlines()]
    assert len(reports) == 6
    for report in reports:
        assert report["spills"] == report["scratch_bytes"] == 0 and report["binary_bytes"] > 0, report
        has_16_bytes = report["loads_16_bytes"] > 0 and report["stores_16_bytes"] > 0
        assert has_16_bytes or report["width"] < 1024, report


UNALIGNED = """
import aot
from rocstar.kernels.configs import LaunchConfig
aot.ALIGNED_INTEGERS = ()
variant = aot.Variant(
    arch="gfx942", kernel="row_stats", config=LaunchConfig(block=8192, num_warps=16), aligned=False
)
print(aot.compile_variant(variant).complaints())
"""


def test_rows_that_begin_anywhere_would_be_seen(tmp_path: Path) -> None:
    assert output(tmp_path, "-c", UNALIGNED).strip() == "['no 16-byte load']"


def test_a_silent_assembler_is_an_error() -> None:
    done = python("-c", "from aot import _only; _only(r'(\\d+) bytes stack', 'nothing')")
    assert done.returncode == 1 and "did not report" in done.stderr


def test_the_interpreter_cannot_compile() -> None:
    done = python(str(AOT), TRITON_INTERPRET="1")
    assert done.returncode == 2 and "unset it" in done.stderr and "Traceback" not in done.stderr


def test_the_kernels_of_a_layer_compile_well(tmp_path: Path) -> None:
    full = ["--full"] if is_set("ROCSTAR_SLOW_TESTS") else []
    reports: list[dict[str, Any]] = json.loads(output(tmp_path, str(AOT_LAYERS), "--json", *full))
    kernels = {"norm", "norm_grad", "norm_rotate", "norm_rotate_grad", "gated", "gated_grad", "sum_rows"}
    for arch in ("gfx942", "sm_90"):
        assert {r["kernel"] for r in reports if r["arch"] == arch} == kernels
    for report in reports:
        assert not report["complaints"], report
        assert report["scratch_bytes"] == report["spills"] == 0 and report["loads_16_bytes"] > 0
        assert report["threads"] <= 1024


BAD_LAYERS = """
import aot_layers
from rocstar.kernels import triton_layers
aot_layers.SIZES, aot_layers.HEAD_SIZES = (1024,), (128,)
aot_layers.TARGETS = {{"sm_90": aot_layers.TARGETS["sm_90"]}}
triton_layers.{name} = {value}
print([c for r in aot_layers.compile_all(("bf16",)) for c in r.complaints()])
"""


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("THREAD_BYTES", 1024, "spills"),
        ("THREAD_BYTES", 4, "no 16-byte load"),
        ("UNIT_THREADS", "{32: 2048}", "registers of a multiprocessor"),
    ],
)
def test_the_gate_of_a_layer_s_kernels_closes(name: str, value: object, complaint: str, tmp_path: Path) -> None:
    assert complaint in output(tmp_path, "-c", BAD_LAYERS.format(name=name, value=value))
