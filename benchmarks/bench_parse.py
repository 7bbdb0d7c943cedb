"""Truncation, UTF-8 repair, framing and parsing of 64 results of 10 kB: C++ against Python.

    python benchmarks/bench_parse.py

C++ is what runs in production: csrc/sandbox/capture.cpp, utf8.cpp and protocol.cpp in the supervisor, here
built into a small program (frame_results.cpp), and `_native.ResultReader` in the pool. Python is
pure_parse.py and `wire.PythonReader`: slices, struct and `bytes.decode`. That codec is C inside the
interpreter, and building a `str` is the same C on both sides, so `ratio` compares C with C, but for invalid
text that has to be cut: there the codec tells of each bad part by a call. The last column, which the bar is
on, is pure Python, code point by code point. Both sides must give the same frames and the same fields. CPU
time, rounds in turn, medians."""

from __future__ import annotations

import argparse
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandbox_bench import pure_parse
from sandbox_bench.report import ROOT, bar, finish
from sandbox_bench.stats import median

from rocstar.sandbox import _native
from rocstar.sandbox.bench import table
from rocstar.sandbox.pool import wire

RESULTS, SIZE, CAP = 64, 10_000, 8192
REPEATS = 20
LINES = dict.fromkeys(("mixed", "invalid"), "π ≈ 3,14 é 数 😀 ok\n") | {
    "ascii": "value = 3.14159, next row\n"
}
STAGES = ("C++ frame", "C++ read", "Python frame", "Python read")
BAR = 5.0


def outputs(kind: str) -> list[bytes]:
    """64 outputs of 10 kB, no two the same. mixed: a fifth of the characters are not ASCII. invalid: mixed,
    with two bytes in a hundred replaced by noise."""
    rng = random.Random(5)
    found = []
    for index in range(RESULTS):
        line = f"step {index}: " + LINES[kind]
        data = bytearray((line * (SIZE // len(line) + 1)).encode()[:SIZE])
        if kind == "invalid":
            for at in rng.sample(range(SIZE), SIZE // 50):
                data[at] = rng.randrange(256)
        found.append(bytes(data))
    return found


def build(folder: Path) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler on the PATH, which also `make setup` needs")
    program = folder / "frame_results"
    sources = [ROOT / "csrc" / "sandbox" / name for name in ("capture.cpp", "utf8.cpp", "protocol.cpp")]
    own = Path(__file__).parent / "sandbox_bench" / "frame_results.cpp"
    flags = ["-std=c++20", "-O3", "-DNDEBUG", f"-I{ROOT / 'csrc' / 'sandbox'}"]
    subprocess.run([compiler, *flags, own, *sources, "-o", program], check=True)
    return program


def cpp_frames(
    program: Path, folder: Path, raw: list[bytes], repeats: int, cap: int = CAP
) -> tuple[list[float], bytes]:
    """CPU seconds per repetition, and the frames."""
    source, target = folder / "raw", folder / "stream"
    source.write_bytes(b"".join(struct.pack("=I", len(data)) + data for data in raw))
    command = [program, source, target, str(cap), str(repeats)]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    return [int(line) / 1e9 for line in done.stdout.split()], target.read_bytes()


def timed(action: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        begun = time.process_time_ns()
        action()
        times.append((time.process_time_ns() - begun) / 1e9)
    return times


def python_frames(raw: list[bytes], cap: int = CAP) -> bytes:
    return b"".join(pure_parse.frame_result(index, data, b"", cap) for index, data in enumerate(raw))


def one_kind(kind: str, program: Path, folder: Path, rounds: int) -> dict[str, Any]:
    raw = outputs(kind)
    stream = python_frames(raw)
    times: dict[str, list[float]] = {name: [] for name in STAGES}
    by_hand: list[float] = []
    for _ in range(rounds):
        framed, cpp_stream = cpp_frames(program, folder, raw, REPEATS)
        if cpp_stream != stream:
            raise RuntimeError(f"{kind}: the frames of C++ and Python differ")
        times["C++ frame"].append(median(framed))
        times["C++ read"].append(median(timed(lambda: _native.ResultReader().feed(stream), REPEATS)))
        times["Python frame"].append(median(timed(lambda: python_frames(raw), REPEATS)))
        times["Python read"].append(median(timed(lambda: wire.PythonReader().feed(stream), REPEATS)))
        by_hand += timed(lambda: [pure_parse.repair_by_hand(data) for data in raw], 1)
    if _native.ResultReader().feed(stream) != wire.PythonReader().feed(stream):
        raise RuntimeError(f"{kind}: the fields that C++ and Python read differ")
    both = zip(*times.values(), strict=True)
    ratios = [(by_python + read) / (native + parse) for native, parse, by_python, read in both]
    middle = {name: 1e6 * median(values) for name, values in times.items()}
    cpp = middle["C++ frame"] + middle["C++ read"]
    return {
        "outputs": kind,
        **{f"{name} us": round(value, 1) for name, value in middle.items()},
        "ratio": round(median(ratios), 2),
        "ratio_rounds": [round(ratio, 2) for ratio in ratios],
        "Python without the codec us": round(1e6 * median(by_hand)),
        "ratio_without_codec": round((1e6 * median(by_hand) + middle["Python read"]) / cpp, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "sandbox_parse.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        rows = [one_kind(kind, program, Path(name), options.rounds) for kind in ("ascii", "mixed", "invalid")]
    headings = ("outputs", "C++ frame us", "C++ read us", "Python frame us", "Python read us", "ratio")
    print(table((*headings, "ratio, pure Python"), [_line(row, headings) for row in rows]), end="\n\n")
    bars = [
        bar(f"{row['outputs']}: pure Python over C++, CPU", row["ratio_without_codec"], BAR, at_most=False)
        for row in rows
    ]
    about = {"results": RESULTS, "bytes_each": SIZE, "output_bytes": CAP, "rows": rows}
    return finish("parse", about, bars, options.out)


def _line(row: dict[str, Any], headings: tuple[str, ...]) -> list[object]:
    return [*(row[name] for name in headings), row["ratio_without_codec"]]


if __name__ == "__main__":
    sys.exit(main())
