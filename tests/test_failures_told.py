"""A test that fails is told as that, whatever it leaves behind."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FAILS = """
import asyncio, gc

class Ring:
    def __init__(self, task):
        self.ring, self.task = self, task

async def fails():
    raise ValueError((1 + 2) * 3 + [0][1])

async def test_fails():
    gc.collect()
    gc.set_threshold({threshold}, 1, 1)
    for _ in range(3):
        Ring(asyncio.create_task(fails()))
        await asyncio.sleep(0)
    assert 1 == 2
"""
LINES = "".join(f"def f{i}(a, b):\n    return [a + b * {i}, (a, b, {i}), {{a: b}}]\n" for i in range(4000))
"""So many that the collector comes while they are parsed."""


@pytest.mark.parametrize("threshold", [15_000, 40_000])
def test_a_task_that_failed_unseen_does_not_end_the_run(tmp_path: Path, threshold: int) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_makereport\n")
    (tmp_path / "test_it.py").write_text(FAILS.format(threshold=threshold) + LINES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    ended = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "assert 1 == 2" in ended.stdout and "1 failed" in ended.stdout, ended.stdout + ended.stderr
    assert "INTERNALERROR" not in ended.stdout
