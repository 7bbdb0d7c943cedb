"""Eight ranks on two network namespaces learn what one process learns; a run outlives one of its nodes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .. import needs

ROOT = Path(__file__).parents[2]
NAMESPACES = needs.Need("network namespaces", "apt-get install iproute2, and root with CAP_NET_ADMIN")


def has_namespaces() -> bool:
    """Whether one can be made here; tried with a name that nobody else has."""
    try:
        made = subprocess.run(["ip", "netns", "add", "rsn-try"], capture_output=True, check=False)
    except OSError:
        return False
    subprocess.run(["ip", "netns", "del", "rsn-try"], capture_output=True, check=False)
    return made.returncode == 0


@needs.time_for("ROCSTAR_SLOW_TESTS").unless(needs.is_set("ROCSTAR_SLOW_TESTS"))
@pytest.mark.timeout(3600)
def test_every_bar_of_the_benchmark_is_met(tmp_path: Path) -> None:
    if not has_namespaces():
        NAMESPACES.skip()
    out = tmp_path / "eight_ranks.json"
    command = [
        sys.executable,
        ROOT / "benchmarks" / "eight_ranks.py",
        "--runs",
        tmp_path / "runs",
        "--out",
        out,
    ]
    subprocess.run(command, check=True, cwd=ROOT)
    bars = json.loads(out.read_text())["bars"]
    assert len(bars) == 4 and all(bar["met"] for bar in bars), bars
