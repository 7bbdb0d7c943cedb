"""Two nodes under torchrun, each with its own SGLang servers: stand-ins, which compute with their weights.

torchrun, node 0: rank 0 ── server        torchrun, node 1: rank 1 ── server
            └────────────HTTP: groups; orders over torch──────┘
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.json_record import from_record
from rocstar.engine.types import Scored
from tests.fakes.json_lines import read_folder

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


BROADCAST = ["--engine.publish=broadcast"]
ROLES = [{"ROLE_NAME": "default", "ROLE_WORLD_SIZE": "1"}, {"ROLE_NAME": "server", "ROLE_WORLD_SIZE": "1"}]


@pytest.mark.parametrize(
    ("more", "launch"),
    [
        pytest.param(["--engine.publish=disk", "--rl.max_staleness=1"], {}, marks=LONG, id="disk"),
        pytest.param(BROADCAST, {}, id="broadcast"),
        pytest.param(["--engine.placement=restart"], {}, marks=LONG, id="restart"),
        pytest.param(BROADCAST, {"torchrun": False, "by_node": ROLES}, id="serves only"),
        pytest.param(BROADCAST, {"by_launcher": [[], ["--role=server"]]}, marks=LONG, id="serves only, torchrun"),
    ],
)
def test_every_node_serves_with_its_own_servers(
    workshop: Any, finished: Path, read_rows: Rows, tmp_path: Path, more: list[str], launch: dict[str, Any]
) -> None:
    """Tokens labelled with a version were computed with its weights, on each node.

    If node 1 only serves, node 0 alone learns, and node 1 loads every version from its files.
    """
    directory = tmp_path / "run"
    python = interpreter(tmp_path, "python", SCRIPT.format(python=warm().executable, root=ROOT))
    launchers = start_nodes(
        workshop, *options(finished, directory), *more, **launch, ROCSTAR_SGLANG_PYTHON=python, OMP_NUM_THREADS="1"
    )
    for code, errors in ended(launchers):
        assert code == 0, errors
    rows = read_rows(directory, "rl")
    found = [from_record(record) for record in read_folder(directory / "trajectories")]
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
        assert row["policy/staleness_max"] == 0 or "--rl.max_staleness=1" in more
    for log in ("sglang-0.log", "sglang-rank1-0.log"):
        assert "fake server ready" in (directory / "logs" / log).read_text()


def test_a_node_whose_server_does_not_start_ends_the_run(workshop: Any, finished: Path, tmp_path: Path) -> None:
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
