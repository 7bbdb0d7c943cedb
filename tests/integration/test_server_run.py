"""`rocstar train` over SGLang servers: stand-in servers that compute with the weights they are given.

In most tests the servers are objects of this process, which start at once; in one they are children, and one
of them is killed. The checks before, the fleet, the supervision and the weights on their way are real.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocstar.engine.inference.base import Generation
from rocstar.engine.inference.sglang.replica import Replica
from rocstar.engine.record.files import record_files
from rocstar.engine.record.json_record import check_branches, from_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.types import Scored, Trajectory
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.record.time_budget import PHASES
from tests.fakes.sglang.fake_process import InProcess, InProcessSGLang

Rows = Callable[..., list[dict[str, Any]]]
ROOT = Path(__file__).parents[2]
SCRIPT = """#!/bin/sh
if [ "$1" = -c ]; then exit 0; fi  # "is sglang there?"
shift 2
PYTHONPATH={root} exec {python} -m tests.fakes.sglang.fake_server --policy "$@"
"""
KIND = "--engine.kind=tests.fakes.sglang.fake_process:InProcessSGLang"
SERVERS = (KIND, "--engine.replicas=2", '--engine.args.device="cpu"')
ONE_STAGE = ("--stages.1.steps=0", "--checkpoint.keep_last=9")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    """Servers start in this process; `started` lists their commands."""
    launcher = InProcess(policy=True)
    monkeypatch.setattr(InProcessSGLang, "launcher", launcher)
    monkeypatch.setenv("ROCSTAR_SGLANG_PYTHON", "/bin/true")
    yield launcher
    assert not launcher.running, "a server was left behind"


@pytest.fixture
def run(workshop: Any, finished: Path, tmp_path: Path) -> Callable[..., Path]:
    """`rocstar train` of the finished run's first model; returns the run directory."""

    def train(*options: str, steps: int, code: int = 0) -> Path:
        model = f"--model.path={finished / 'checkpoints' / 'step_0'}"
        given = {option.partition("=")[0] for option in options}
        common = [o for o in (model, "--sft.steps=0", *SERVERS) if o.partition("=")[0] not in given]
        arguments = [*common, *ONE_STAGE, f"--stages.0.steps={steps}", *options]
        ended = workshop.main("train", "coin.toml", "--output-dir", str(tmp_path / "run"), *arguments)
        assert ended.returncode == code, ended.stderr
        (tmp_path / "stderr").write_text(ended.stderr)
        return tmp_path / "run"

    return train


def by_step(directory: Path) -> dict[int, list[Trajectory]]:
    files = record_files(directory / "trajectories")
    return {step: [from_record(r) for r in read_records(path)] for step, path in files.items()}


def check_run(directory: Path, rows: list[dict[str, Any]], *, steps: int, max_staleness: int = 0) -> None:
    """Every attempt once, none failed, versions as learned, log-probs those of the learner."""
    batches = by_step(directory)
    found = [t for batch in batches.values() for t in batch]
    assert len({str(t.key) for t in found}) == len(found) == steps * 2 * 8
    assert all(isinstance(t.outcome, Scored) for t in found)
    for t in found:
        covered = [k for span in t.version_spans for k in range(span.start, span.end)]
        assert covered == np.flatnonzero(~np.isnan(t.logprobs)).tolist()
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    learned = [row for row in rows if "mismatch_kl/mean" in row]
    assert len(learned) >= steps - 1
    version = rows[0]["policy/version"] - ("mismatch_kl/mean" in rows[0])
    for row in rows:
        oldest = min(span.version for t in batches[row["step"]] for span in t.version_spans)
        assert version - oldest == row["policy/staleness_max"] <= max_staleness
        version += "mismatch_kl/mean" in row
        assert row["policy/version"] == version
        # One token of other weights than its label says would show in the ratio.
        if row in learned and row["policy/staleness_max"] == 0:
            assert row["mismatch_ratio/p99"] == pytest.approx(1.0, abs=1e-4)
        parts = [row[f"time/{phase}"] for phase in PHASES]
        assert min(parts) >= 0 and sum(parts) == pytest.approx(row["time/step"])


def total(rows: list[dict[str, Any]], name: str) -> float:
    return sum(row[f"engine/{name}"] for row in rows)


def test_servers_beside_a_learner_that_tunes_first(run: Any, servers: InProcess, read_rows: Rows) -> None:
    directory = run("--sft.steps=3", steps=3)
    rows = read_rows(directory, "rl")
    check_run(directory, rows, steps=3)
    assert rows[0]["policy/version"] - ("mismatch_kl/mean" in rows[0]) == 1, "version 0 was the given model"
    assert len(read_rows(directory, "sft")) == 3
    assert len(servers.started) == 2 and total(rows, "replicas_lost") == 0
    kept = sorted(path.name for path in (directory / "weights").iterdir())
    assert kept == ["start", *(f"v{rows[-1]['policy/version'] - k:.0f}" for k in (1, 0))]


def test_a_server_that_dies_costs_nothing_but_time(
    run: Any, servers: InProcess, read_rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Nor does a broadcast that fails: one process cannot join a group as two servers; it goes by disk."""
    real, calls = Replica.generate, 0

    async def generate(self: Replica, ids: list[int], **options: Any) -> Generation:
        nonlocal calls
        calls += 1
        if calls % 40 == 39:
            await servers.running[0].kill()
        return await real(self, ids, **options)

    monkeypatch.setattr(Replica, "generate", generate)
    directory = run("--engine.publish=broadcast", "--rl.max_staleness=1", steps=3)
    rows = read_rows(directory, "rl")
    check_run(directory, rows, steps=3, max_staleness=1)
    assert len(servers.started) > 2 and total(rows, "turns_continued") > 0
    assert "goes there by disk" in caplog.text and total(rows, "publishes_failed") == 0


def test_a_server_that_dies_in_a_branch_costs_nothing_but_time(
    run: Any, servers: InProcess, read_rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, branches = Replica.generate, set()

    async def generate(self: Replica, ids: list[int], *, request_id: str, **options: Any) -> Generation:
        if "~" in request_id:
            branches.add(request_id)
            if len(branches) == 2:
                branches.add("killed")
                await servers.running[0].kill()
        return await real(self, ids, request_id=request_id, **options)

    monkeypatch.setattr(Replica, "generate", generate)
    directory = run("--rl.fork=turn", "--rl.fork_width=3", steps=2)
    rows = read_rows(directory, "rl")
    found = [t for batch in by_step(directory).values() for t in batch]
    for key in {(t.key.step, t.key.task_id) for t in found}:
        check_branches([t for t in found if (t.key.step, t.key.task_id) == key])
    forked = [t for t in found if t.fork is not None]
    assert len(forked) == sum(2 * row["fork/branches"] for row in rows) > 2
    assert len(found) == 2 * 2 * 8 + len(forked) and all(isinstance(t.outcome, Scored) for t in found)
    assert len({(tuple(t.ids), t.fork.start) for t in forked if t.fork}) > len(forked) / 2, "streams of their own"
    assert total(rows, "replicas_lost") == 1 and len(servers.started) > 2
    assert all(row["mismatch_ratio/p99"] == pytest.approx(1.0, abs=1e-4) for row in rows if "mismatch_kl/mean" in row)


def test_servers_make_room_for_the_learner_and_a_run_goes_on(
    run: Any, servers: InProcess, read_rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are away while it works, start from its new weights, and lose no token."""
    there: list[int] = []
    real = LearnerTeam.policy_step

    async def policy_step(*args: Any) -> Any:
        there.append(len(servers.running))
        return await real(*args)

    monkeypatch.setattr(LearnerTeam, "policy_step", policy_step)
    options = ("--engine.placement=restart", "--rl.max_staleness=1")
    directory = run(*options, steps=3)
    for step in (2, 3):
        shutil.rmtree(directory / "checkpoints" / f"step_{step}")
    run(*options, "--resume", steps=3)
    rows = read_rows(directory, "rl")
    check_run(directory, rows, steps=3, max_staleness=1)
    assert there == [0] * len(there) and len(servers.started) == 2 * (2 + len(there))
    folders = [Path(command[4]).name for command in servers.started]
    assert folders.count("start") == 2, "a checkpoint may be deleted; its link stays"
    assert folders[-1] == f"v{rows[-1]['policy/version']:.0f}"
    assert total(rows, "replicas_lost") == 0, "a stop on purpose is no loss"
    assert all(row["memory/freed_gradients"] > 0 for row in rows if "loss/policy" in row)


def test_several_embedded_engines_are_one_fleet(run: Any, read_rows: Rows) -> None:
    directory = run(
        "--engine.kind=embedded", "--engine.args={}", "--engine.max_running=6", "--rl.max_staleness=1", steps=3
    )
    rows = read_rows(directory, "rl")
    check_run(directory, rows, steps=3, max_staleness=1)
    assert total(rows, "replicas_up") == 2 * 3


def test_a_rollout_over_servers(workshop: Any, finished: Path, servers: InProcess, tmp_path: Path) -> None:
    model = f"--model={finished / 'checkpoints' / 'step_0'}"
    command = ["rollout", "coin.toml", model, f"--out={tmp_path / 'out'}", "--steps=1", "--sft.steps=0"]
    workshop.succeed(*command, *SERVERS)
    assert len(by_step(tmp_path / "out")[1]) == 2 * 8


@pytest.mark.slow
def test_servers_that_are_children(
    run: Any, read_rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The whole way: an interpreter, command lines, two processes in a gloo group; one is killed in the
    middle, and comes back with the weights of a version that was broadcast."""
    script = tmp_path / "python-with-sglang"
    script.write_text(SCRIPT.format(python=sys.executable, root=ROOT))
    script.chmod(0o755)
    monkeypatch.setenv("ROCSTAR_SGLANG_PYTHON", str(script))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    real, pids = Replica.generate, []

    async def generate(self: Replica, ids: list[int], **options: Any) -> Generation:
        guard = self._server
        pids.append(guard.pid if guard else None)
        if len(pids) == 60:
            assert guard is not None
            os.kill(guard.pid, signal.SIGKILL)
        return await real(self, ids, **options)

    monkeypatch.setattr(Replica, "generate", generate)
    directory = run("--engine.publish=broadcast", steps=3)
    rows = read_rows(directory, "rl")
    check_run(directory, rows, steps=3)
    assert total(rows, "replicas_lost") == 1 and total(rows, "turns_continued") >= 1
    assert total(rows, "publishes_failed") == 0 and "goes there by disk" not in caplog.text
    assert len({pid for pid in pids if pid}) >= 2
    assert "fake server ready" in (directory / "logs/sglang-1.log").read_text()
    for pid in pids:
        assert not pid or not Path(f"/proc/{pid}").exists(), "a server outlived the run"


def test_a_server_that_does_not_start_says_why(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "broken"
    script.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "no room on the device" >&2\nexit 3\n')
    script.chmod(0o755)
    monkeypatch.setenv("ROCSTAR_SGLANG_PYTHON", str(script))
    run(steps=1, code=2)
    told = (tmp_path / "stderr").read_text()
    assert "no room on the device" in told and "logs/sglang-0.log" in told and "Traceback" not in told


def test_an_interpreter_without_sglang_is_refused(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCSTAR_SGLANG_PYTHON", "/bin/false")
    directory = run(steps=1, code=2)
    assert "ROCSTAR_SGLANG_PYTHON" in (tmp_path / "stderr").read_text() and not directory.exists()
