"""Every kernel of the table compiles for gfx942 and sm_90 without a GPU, and the gate can close.

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

pytestmark = package("triton").unless(find_spec("triton") is not None)


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [str(warm().executable), *arguments],
        env={**kept, "PYTHONPATH": str(AOT.parent), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    cache = tmp_path_factory.mktemp("triton")
    table = [] if is_set("ROCSTAR_SLOW_TESTS") else ["--table"]
    done = python(str(AOT), "--json", *table, TRITON_CACHE_DIR=str(cache))
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_every_entry_of_the_table_compiles_well(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert not report["complaints"], report
        assert report["scratch_bytes"] == report["spills"] == 0
        assert report["loads_16_bytes"] > 0 and report["binary_bytes"] > 0
        assert report["variant"]["config"]["num_warps"] * 64 <= 1024 or report["variant"]["arch"] != "gfx942"
        assert report["threads"] <= 1024


def test_nothing_of_the_table_is_left_out(reports: list[dict[str, Any]]) -> None:
    from rocstar.kernels.configs import TABLE

    for arch in ("gfx942", "sm_90"):
        configs = [dataclasses.asdict(config) for _, config in (*TABLE[arch], *TABLE["fallback"])]
        for kernel in ("row_stats", "grad"):
            compiled = [
                r["variant"]
                for r in reports
                if (r["variant"]["arch"], r["variant"]["kernel"]) == (arch, kernel)
            ]
            assert all(any(v["config"] == config for v in compiled) for config in configs)
            assert {v["aligned"] for v in compiled} == {True, False}


BAD = """
import json
from aot import Variant, compile_variant
from rocstar.kernels.configs import LaunchConfig
for arch, block, warps in {configs}:
    variant = Variant(arch=arch, kernel="row_stats", config=LaunchConfig(block=block, num_warps=warps))
    print(json.dumps(compile_variant(variant).complaints()))
"""


def test_the_gate_closes(tmp_path: Path) -> None:
    configs = [("gfx942", 16384, 8), ("sm_90", 16384, 32), ("gfx942", 8192, 32), ("gfx942", 1024, 4)]
    done = python("-c", BAD.format(configs=configs), TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    spilling, scratching, too_many, narrow = [json.loads(line) for line in done.stdout.splitlines()]
    assert any("spills" in complaint for complaint in spilling)
    assert any("bytes of scratch" in complaint for complaint in scratching)
    assert "2048 threads, more than 1024" in too_many
    assert "no 16-byte load" in narrow


SUM_READERS = """
import json
import aot
import triton
from triton.compiler import ASTSource
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
        source = ASTSource(
            fn=kernel,
            signature={**types, "BLOCK": "constexpr"},
            constexprs={(names.index("BLOCK"),): block},
            attrs={(names.index(n),): [["tt.divisibility", 16]] for n in aligned},
        )
        compiled = triton.compile(source, target=target, options={"num_warps": num_warps})
        is_amd = target.backend == "hip"
        counts = aot._amd_counts(compiled) if is_amd else aot._nvidia_counts(compiled, target.arch)
        print(json.dumps({"arch": arch, "width": width, **counts}))
"""


def test_the_sum_of_readers_compiles_without_spills(tmp_path: Path) -> None:
    done = python("-c", SUM_READERS, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
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
    done = python("-c", UNALIGNED, TRITON_CACHE_DIR=str(tmp_path))
    assert done.stdout.strip() == "['no 16-byte load']", done.stderr


def test_silence_of_an_assembler_is_no_good_news() -> None:
    code = "from aot import _only; _only(r'(\\d+) bytes stack', 'nothing')"
    done = python("-c", code)
    assert done.returncode == 1 and "did not report" in done.stderr


def test_the_interpreter_cannot_compile() -> None:
    done = python(str(AOT), TRITON_INTERPRET="1")
    assert done.returncode == 2 and "unset it" in done.stderr and "Traceback" not in done.stderr
