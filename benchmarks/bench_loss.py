"""The policy loss on a CPU: in place and chunked, against log_softmax and autograd.

    python benchmarks/bench_loss.py

512 rows, a vocabulary of 49152, float32. Both sides start from the logits (`logits`) or from the hidden
states of a 135M model (`head`, 576 wide) and end with all gradients. `naive` is log_softmax, gather, entropy,
`policy_loss` and backward. Rounds in turn in one process, medians of CPU time and of wall time; the ratio is
the median over rounds, and the bar takes the smaller one. Peak memory is that of a process of its own each:
how far the high-water mark of resident memory rises above the inputs. The bar counts the inputs too.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gpu.cases import Rows
from report import claim, finish, result_parser
from torch import Tensor

from rocstar.kernels import torch_ops
from rocstar.kernels.linear_loss import linear_loss
from rocstar.train.algorithm.loss import logprobs_and_entropy

SIZE = 576
SPEED_BAR, MEMORY_BAR = 2.5, 0.5

Problem = tuple[Tensor, Tensor, Rows]
"""Logits or hidden states, the head's weight (not used for logits), what else is known of the rows."""


def problem(level: str, rows: int, vocabulary: int) -> Problem:
    generator = torch.Generator().manual_seed(3)
    width = vocabulary if level == "logits" else SIZE
    first = torch.randn(rows, width, generator=generator) * 3
    head_rows = vocabulary if level == "head" else 0
    weight = torch.randn(head_rows, SIZE, generator=generator) * 0.05
    tokens = Rows(
        ids_N=torch.randint(0, vocabulary, (rows,), generator=generator),
        weights_N=torch.rand(rows, generator=generator) / rows,
        advantages_N=torch.randn(rows, generator=generator),
    )
    return first, weight, tokens


def naive(level: str, given: Problem) -> list[Tensor]:
    first, weight, tokens = given
    leaf, head = first.detach().requires_grad_(True), weight.detach().requires_grad_(True)
    logprobs, _ = logprobs_and_entropy(leaf if level == "logits" else leaf @ head.T, tokens.ids_N, 1.0)
    torch.autograd.backward(tokens.loss_of(logprobs, slice(None)).sum())
    assert leaf.grad is not None
    return [leaf.grad] if level == "logits" else [leaf.grad, head.grad]  # type: ignore[list-item]


def fused(level: str, given: Problem) -> list[Tensor]:
    first, weight, tokens = given
    if level == "logits":
        torch_ops.row_loss_(first, tokens.ids_N, tokens.loss_of, temperature=1.0, grad=True)
        return [first]
    leaf, head = first.detach().requires_grad_(True), weight.detach().requires_grad_(True)
    loss, _ = linear_loss(leaf, head, tokens.ids_N, tokens.loss_of, backend="torch")
    torch.autograd.backward(loss)
    return [leaf.grad, head.grad]  # type: ignore[list-item]


WAYS: dict[str, Callable[[str, Problem], list[Tensor]]] = {"naive": naive, "fused": fused}


def one_round(level: str, given: Problem) -> dict[str, tuple[float, float]]:
    """CPU and wall seconds of each way. The fused one eats its logits, so each gets a copy of its own."""
    times = {}
    for name, way in WAYS.items():
        fresh = (given[0].clone(), given[1], given[2])
        wall, cpu = time.perf_counter(), time.process_time()
        way(level, fresh)
        times[name] = (time.process_time() - cpu, time.perf_counter() - wall)
    return times


def resident_bytes(field: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def peak_bytes(level: str, way: str, given: Problem) -> int:
    """How far resident memory rises above the inputs, the second time: the first loads code and threads."""
    small = problem(level, 8, 64)
    WAYS[way](level, small)
    gc.collect()
    before = resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts from here
    WAYS[way](level, given)
    return resident_bytes("VmHWM") - before


def peak_in_own_process(options: argparse.Namespace, level: str, way: str) -> int:
    command = [
        *(sys.executable, __file__, f"--peak={level},{way}", f"--rows={options.rows}"),
        *(f"--vocabulary={options.vocabulary}", f"--threads={options.threads}"),
    ]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def one_level(options: argparse.Namespace, level: str) -> dict[str, Any]:
    given = problem(level, options.rows, options.vocabulary)
    rounds = [one_round(level, given) for _ in range(options.rounds)]
    inputs = sum(tensor.nbytes for tensor in given[:2])
    peaks = {way: peak_in_own_process(options, level, way) for way in WAYS}

    def middle(way: str, which: int) -> float:
        return round(1e3 * median([times[way][which] for times in rounds]), 1)

    def ratio(which: int) -> float:
        return round(median([times["naive"][which] / times["fused"][which] for times in rounds]), 2)

    return {
        "level": level,
        "cpu_ms": {way: middle(way, 0) for way in WAYS},
        "wall_ms": {way: middle(way, 1) for way in WAYS},
        "peak_mib": {way: round(peak / 2**20, 1) for way, peak in peaks.items()},
        "speedup_cpu": ratio(0),
        "speedup_wall": ratio(1),
        "memory_share": round(peaks["fused"] / peaks["naive"], 3),
        "memory_share_with_inputs": round((peaks["fused"] + inputs) / (peaks["naive"] + inputs), 3),
    }


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--levels", nargs="+", default=["logits", "head"], choices=("logits", "head"))
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        level, way = options.peak.split(",")
        given = problem(level, options.rows, options.vocabulary)
        print(peak_bytes(level, way, given))
        return 0
    rows = [one_level(options, level) for level in options.levels]
    for row in rows:
        print(row)
    row = rows[0]
    speed = min(row["speedup_cpu"], row["speedup_wall"])
    share = row["memory_share_with_inputs"]
    claims = [
        claim("time of the naive policy loss over the fused one on a CPU", speed, at_least=SPEED_BAR),
        claim("peak memory of the fused policy loss over the naive one", share, at_most=MEMORY_BAR),
    ]
    about = {name: getattr(options, name) for name in ("rows", "vocabulary", "threads", "rounds")}
    about |= {"torch": torch.__version__, "hidden_size": SIZE}
    return finish("loss_cpu", {**about, "levels": rows}, claims, options.out, seeds=[3])


if __name__ == "__main__":
    sys.exit(main())
