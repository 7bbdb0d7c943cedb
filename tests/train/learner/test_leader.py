"""The other ranks wait for rank 0 as long as it lives, and no longer; two real processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.learner.store_channel import Pulse

from ...warm_python import WarmProcess, warm

SCRIPT = Path(__file__).parents[1] / "ranks" / "wait.py"
DEADLINE_S = 300.0


@pytest.fixture
def ranks() -> Iterator[Callable[[str], list[subprocess.Popen[str]]]]:
    """Starts both; the store is here, as torchrun has it, and outlives them."""
    any_dist: Any = dist
    store = any_dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)
    started: list[subprocess.Popen[str]] = []

    def start(what: str) -> list[subprocess.Popen[str]]:
        for rank in range(2):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "OMP_NUM_THREADS": "1",
            }
            started.append(
                WarmProcess(
                    [str(warm().executable), str(SCRIPT), what],
                    env=os.environ | environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return started

    yield start
    for child in started:
        child.kill()
        child.communicate()


def test_rank_0_may_think_for_longer_than_a_collective_may_take(ranks: Any) -> None:
    leader, other = ranks("think")
    told, error = other.communicate(timeout=DEADLINE_S)
    assert (other.returncode, told) == (0, "done\n"), error[-2000:]
    assert leader.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_end_when_rank_0_is_gone(ranks: Any, end: signal.Signals) -> None:
    leader, other = ranks("hang")
    assert leader.stdout.readline() == "waits\n"
    leader.send_signal(end)
    _, error = other.communicate(timeout=DEADLINE_S)
    assert other.returncode == 1
    last = error.strip().splitlines()[-1]
    assert last.startswith("stopped: rank 0 is gone: it has not shown life for ") and "--resume" in last


@given(steps=st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=40))
def test_silence_is_the_time_since_the_last_change(steps: list[tuple[float, bool]]) -> None:
    pulse, now, beat, changed = Pulse(7.0), 7.0, 0, 7.0
    assert pulse.silence_s(beat, now) == 0.0
    for passed_s, beats in steps:
        now, beat = now + passed_s, beat + beats
        changed = now if beats else changed
        assert pulse.silence_s(beat, now) == now - changed
