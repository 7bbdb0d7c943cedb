"""A process that keeps what it freed faults no page in again; copies of a GPU's memory are pinned."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from rocstar.train.learner import host_memory

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


GPU, HOST = torch.device("cuda", 0), torch.device("cpu")


class Seen:
    """The device calls of `sent`, in order, where `pins` tensors can be pinned. No device is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pins: int) -> None:
        self.calls: list[str] = []
        self._pins = pins
        monkeypatch.setattr(torch, "empty_like", self._empty_like)
        monkeypatch.setattr(Tensor, "copy_", lambda *given, **more: self._copy(*given, **more))
        monkeypatch.setattr(Tensor, "to", lambda *given, **more: self._to(*given, **more))
        monkeypatch.setattr(host_memory, "_wait_for", lambda gpu: self.calls.append(f"wait {gpu}"))

    def _empty_like(self, like: Tensor, *, device: torch.device, pin_memory: bool = False) -> Tensor:
        self.calls.append("pin" if pin_memory else "pageable")
        if pin_memory and self._pins == 0:
            raise RuntimeError("CUDA error: out of memory")
        self._pins -= pin_memory
        return torch.empty(like.shape, dtype=like.dtype, device=device)

    def _copy(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        self.calls.append("queue" if non_blocking else "copy")
        return target

    def _to(self, source: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        self.calls.append("queue" if non_blocking else "copy")
        return torch.empty(source.shape, dtype=source.dtype, device=device)


@pytest.mark.parametrize(
    ("pins", "calls"),
    [
        (3, ["pin", "queue", "pin", "queue", "wait cuda:0"]),
        (1, ["pin", "queue", "pin", "pageable", "queue", "wait cuda:0"]),
        (0, ["pin", "pageable", "queue", "pageable", "queue", "wait cuda:0"]),
    ],
)
def test_copies_to_the_host_are_pinned_while_the_system_lets_them(
    pins: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are queued together, waited for once, and a tensor of the host stays the same object."""
    with FakeTensorMode():
        here = torch.empty(5)
        tensors = [torch.empty(3, device=GPU), here, torch.empty(4, 2, device=GPU)]
        seen = Seen(monkeypatch, pins)
        sent = host_memory.sent(tensors, HOST)
    assert seen.calls == calls
    assert [tuple(tensor.shape) for tensor in sent] == [(3,), (5,), (4, 2)] and sent[1] is here
    assert {tensor.device for tensor in sent} == {HOST}


def test_copies_to_a_gpu_are_complete_on_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that they come from is free after that."""
    with FakeTensorMode():
        there = torch.empty(3, device=GPU)
        tensors = [torch.empty(3), there, torch.empty(4)]
        seen = Seen(monkeypatch, 0)
        sent = host_memory.sent(tensors, GPU)
    assert seen.calls == ["queue", "queue", "wait cuda:0"]
    assert {tensor.device for tensor in sent} == {GPU} and sent[1] is there


def test_nothing_is_waited_for_where_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(monkeypatch, 0)
    here = torch.zeros(3)
    assert host_memory.sent([here], HOST)[0] is here and not seen.calls
    assert host_memory.sent([], GPU) == []
