"""Two nodes under torchrun, each with its own SGLang servers: stand-ins, which compute with their weights.

torchrun, node 0: rank 0 ── server        torchrun, node 1: rank 1 ── server
            └────────────HTTP: groups; orders over torch──────┘
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.reading import from_record, read_folder
from rocstar.engine.types import Scored, Trajectory

from .. import needs
from ..warm_python import warm
from .launching import ended, start_nodes

Rows = Callable[..., list[dict[str, Any]]]
ROOT = Path(__file__).parents[2]
SCRIPT = """#!/bin/sh
if [ "$1" = -c ]; then exit 0; fi  # "is sglang there?"
shift 2
PYTHONPATH={root} exec {python} -m tests.fakes.sglang.fake_server --policy "$@"
"""
BROKEN = """#!/bin/sh
if [ "$1" = -c ]; then exit 0; fi
echo "no room on the device" >&2
exit 3
"""
STEPS = 3
LONG = needs.time_for("ROCSTAR_SLOW_TESTS").unless(needs.is_set("ROCSTAR_SLOW_TESTS"))


def interpreter(folder: Path, name: str, text: str) -> str:
    script = folder / name
    script.write_text(text)
    script.chmod(0o755)
    return str(script)


def options(finished: Path, directory: Path) -> list[str]:
    """The run of `finished` from the end of its cold start; four tasks a step, for both nodes."""
    return [
        *("coin.toml", f"--output-dir={directory}"),
        *(f"--model.path={finished / 'checkpoints' / 'step_0'}", "--sft.steps=0"),
        *("--engine.kind=sglang", "--engine.replicas=1", '--engine.args.device="cpu"'),
        *("--rl.tasks_per_step=4", f"--stages.0.steps={STEPS}", "--stages.1.steps=0"),
        "--eval.samples_per_task=1",
    ]


def trajectories(directory: Path) -> list[Trajectory]:
    return [from_record(r) for r in read_folder(directory / "trajectories")]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param("disk", ["--engine.publish=disk", "--rl.max_staleness=1"], marks=LONG),
        ("broadcast", ["--engine.publish=broadcast"]),
        pytest.param("restart", ["--engine.placement=restart"], marks=LONG),
    ],
)
def test_every_node_serves_with_its_own_servers(
    workshop: Any,
    finished: Path,
    read_rows: Rows,
    tmp_path: Path,
    name: str,
    more: list[str],
) -> None:
    """What is labelled with a version was computed with its weights, on whichever node."""
    directory = tmp_path / "run"
    python = interpreter(tmp_path, "python", SCRIPT.format(python=warm().executable, root=ROOT))
    launchers = start_nodes(
        workshop, *options(finished, directory), *more, ROCSTAR_SGLANG_PYTHON=python, OMP_NUM_THREADS="1"
    )
    for code, errors in ended(launchers):
        assert code == 0, errors
    rows, found = read_rows(directory, "rl"), trajectories(directory)
    assert len({str(t.key) for t in found}) == len(found) == STEPS * 4 * 8
    assert all(isinstance(t.outcome, Scored) for t in found)
    assert [row["nodes/up"] for row in rows] == [2] * STEPS
    assert 3 <= sum(row["nodes/groups/1"] for row in rows) <= 9, "of twelve: about half"
    assert sum(row["nodes/regranted"] for row in rows) == 0
    learned = [row for row in rows if "mismatch_ratio/p99" in row]
    assert len(learned) >= 2 and rows[-1]["policy/version"] == len(learned)
    for row in learned:
        # One token of other weights than its label says would show in the ratio.
        if row["policy/staleness_max"] == 0:
            assert row["mismatch_ratio/p99"] == pytest.approx(1.0, abs=1e-4)
    for log in ("sglang-0.log", "sglang-rank1-0.log"):
        assert "fake server ready" in (directory / "logs" / log).read_text()


@pytest.mark.parametrize("torchrun", [False, pytest.param(True, marks=LONG)])
def test_a_node_that_only_serves_takes_its_part_of_the_groups(
    workshop: Any, finished: Path, read_rows: Rows, tmp_path: Path, torchrun: bool
) -> None:
    """Node 0 alone learns, and broadcasts to its own server; the other's takes every version from its
    files."""
    directory = tmp_path / "run"
    python = interpreter(tmp_path, "python", SCRIPT.format(python=warm().executable, root=ROOT))
    roles = [
        {"ROLE_NAME": "default", "ROLE_WORLD_SIZE": "1"},
        {"ROLE_NAME": "server", "ROLE_WORLD_SIZE": "1"},
    ]
    launchers = start_nodes(
        workshop,
        *options(finished, directory),
        "--engine.publish=broadcast",
        torchrun=torchrun,
        by_node=[{}, {}] if torchrun else roles,
        by_launcher=[[], ["--role=server"]],
        ROCSTAR_SGLANG_PYTHON=python,
        OMP_NUM_THREADS="1",
    )
    for code, errors in ended(launchers):
        assert code == 0, errors
    rows, found = read_rows(directory, "rl"), trajectories(directory)
    assert len({str(t.key) for t in found}) == len(found) == STEPS * 4 * 8
    assert all(isinstance(t.outcome, Scored) for t in found)
    assert [row["nodes/up"] for row in rows] == [2] * STEPS
    assert 3 <= sum(row["nodes/groups/1"] for row in rows) <= 9, "of twelve: about half"
    learned = [row for row in rows if "mismatch_ratio/p99" in row]
    assert len(learned) >= 2
    for row in learned:  # one token of other weights than its label says would show
        assert row["policy/staleness_max"] == 0
        assert row["mismatch_ratio/p99"] == pytest.approx(1.0, abs=1e-4)
    assert "fake server ready" in (directory / "logs" / "sglang-rank1-0.log").read_text()


def test_a_node_whose_server_does_not_start_ends_the_run(
    workshop: Any, finished: Path, tmp_path: Path
) -> None:
    good = interpreter(tmp_path, "python", SCRIPT.format(python=warm().executable, root=ROOT))
    bad = interpreter(tmp_path, "broken", BROKEN)
    launchers = start_nodes(
        workshop,
        *options(finished, tmp_path / "run"),
        by_node=[{"ROCSTAR_SGLANG_PYTHON": good}, {"ROCSTAR_SGLANG_PYTHON": bad}],
        OMP_NUM_THREADS="1",
    )
    outcomes = ended(launchers)
    assert all(code for code, _ in outcomes), outcomes
    told = outcomes[0][1]
    assert "no room on the device" in told and "rank 1" in told and "sglang-rank1-0.log" in told, told
