"""The plainest peer: `python -c PROGRAM` per call, one or several at a time."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sandbox_bench.load import Load
from sandbox_bench.processes import ENVIRONMENT
from sandbox_bench.programs import Program

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_all(programs: Sequence[Program], *, at_once: int, python: str = sys.executable) -> Load:
    """CPU is that of the interpreters alone, not of the process that starts them."""
    load = Load()

    def one(program: Program) -> None:
        begun = time.perf_counter()
        done = subprocess.run(
            [python, "-c", program.code],
            capture_output=True,
            text=True,
            env={**ENVIRONMENT, **THREADS},
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        load.latencies_s.append(time.perf_counter() - begun)
        output = done.stdout if done.returncode == 0 else None
        if not program.right(output):
            load.wrong.append((program, output))

    cpu, own, started = _children_cpu_s(), time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(one, programs))
    load.calls, load.seconds = len(programs), time.perf_counter() - started
    load.cpu_s, load.client_cpu_s = _children_cpu_s() - cpu, time.process_time() - own
    return load
