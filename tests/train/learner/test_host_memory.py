"""A process that keeps what it freed faults no page in again, and gives it back when told to."""

from __future__ import annotations

import json
import subprocess
import sys

from ...needs import GLIBC

STEPS = """
import json, resource, sys, threading
import torch
from rocstar.train.learner.host_memory import give_freed_memory_back, keep_freed_memory

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

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

before = resident()
if kept and sys.argv[1] == "keep":
    give_freed_memory_back()
print(json.dumps([kept, faults, before - resident()]))
"""
PAGES = 64 * (1 << 22) // 4096


def measured(how: str) -> tuple[list[int], int]:
    """Page faults of each step, and pages given back in the end."""
    command = [sys.executable, "-c", STEPS, how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    kept, faults, given_back = json.loads(ended.stdout)
    if not kept:
        GLIBC.skip()
    return faults, given_back


def test_what_was_freed_is_not_faulted_in_again() -> None:
    found, given_back = measured("keep")
    assert given_back > PAGES / 2, "a process that goes on behind a run has it no more"
    assert found[0] > PAGES / 2, "the memory is taken in pages"
    assert max(found[3:]) < PAGES / 50


def test_without_it_steps_pay_again_and_again() -> None:
    found, _ = measured("leave")
    assert max(found[3:]) > PAGES / 10
