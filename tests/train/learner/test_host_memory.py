"""A process that keeps what it freed faults no page in again."""

from __future__ import annotations

import json
import subprocess
import sys

from ...needs import GLIBC

STEPS = """
import json, resource, sys, threading
import torch
from rocstar.train.learner.host_memory import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else True
faults = []

def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(1 << 20) for _ in range(64)]
    del held
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

def steps():
    for _ in range(6):
        step()

thread = threading.Thread(target=steps)
thread.start()
thread.join()
print(json.dumps([kept, faults]))
"""
PAGES = 64 * (1 << 22) // 4096


def faults(how: str) -> list[int]:
    command = [sys.executable, "-c", STEPS, how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    kept, found = json.loads(ended.stdout)
    if not kept:
        GLIBC.skip()
    return list(found)


def test_what_was_freed_is_not_faulted_in_again() -> None:
    found = faults("keep")
    assert found[0] > PAGES / 2, "the memory is taken in pages"
    assert max(found[3:]) < PAGES / 50


def test_without_it_steps_pay_again_and_again() -> None:
    assert max(faults("leave")[3:]) > PAGES / 10
