"""Two nodes under torchrun that share one Redis fabric roll out the groups of one process; both end together.

redis-server <── rocstar sandbox worker
     ^  ^──────────────────────────┐
torchrun, node 0: rank 0 ──HTTP──> torchrun, node 1: rank 1
"""

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.reading import read_records
from rocstar.sandbox import proctree
from rocstar.train.record.run_directory import records_file

from .launching import DEADLINE_S, ended, redis_server, start_nodes, worker

Rows = Callable[..., list[dict[str, Any]]]
STEPS = 3


def forks_of(client: subprocess.Popen[str]) -> list[int]:
    """Return the other processes that write to the client's standard error."""
    wanted, found = os.stat(f"/proc/{client.pid}/fd/2"), []
    for path in Path("/proc").glob("[0-9]*/fd/2"):
        with contextlib.suppress(OSError):  # another's, or gone
            if os.path.samestat(path.stat(), wanted):
                found.append(int(path.parts[2]))
    return [pid for pid in found if pid != client.pid]


def held(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, int]]:
    """Return the living ranks and their descendants, each with a descriptor."""
    found = []
    for one in proctree.tree([pid for rank in ranks for pid in (rank.pid, *forks_of(rank))]):
        with contextlib.suppress(ProcessLookupError):
            found.append((one.pid, os.pidfd_open(one.pid)))
    return found


def options(finished: Path, directory: Path) -> list[str]:
    """The run of `finished` from the end of its cold start, three steps of it."""
    start = finished / "checkpoints" / "step_0"
    more = [f"--model.path={start}", "--sft.steps=0", "--stages.1.steps=1", "--eval.samples_per_task=1"]
    return ["coin.toml", f"--output-dir={directory}", *more]


def by_id(directory: Path, step: int) -> dict[str, dict[str, Any]]:
    return {record["id"]: record for record in read_records(records_file(directory, step))}


@pytest.fixture(scope="session")
def fabric() -> Iterator[str]:
    """The URL of a Redis with a sandbox worker."""
    with redis_server() as url, worker(url, "stdlib,verifier"):
        yield url


@pytest.fixture(scope="session")
def two_nodes(workshop: Any, finished: Path, fabric: str) -> Path:
    directory: Path = workshop.directory / "two_nodes"
    launchers = start_nodes(workshop, *options(finished, directory), "--tool.sandbox=redis", ROCSTAR_REDIS_URL=fabric)
    for code, errors in ended(launchers):
        assert code == 0, errors
    return directory


def test_two_nodes_make_the_groups_of_one(finished: Path, two_nodes: Path) -> None:
    called = 0
    for step in range(1, STEPS + 1):
        found, expected = by_id(two_nodes, step), by_id(finished, step)
        assert found.keys() == expected.keys() and len(found) == 16
        for name, record in found.items():
            other = expected[name]
            for logprob, wanted in zip(record.pop("logprobs"), other.pop("logprobs"), strict=True):
                assert logprob == (None if wanted is None else pytest.approx(wanted, abs=1e-5)), name
            for each in (record, other):
                assert each.pop("times")["began"] > 0
                advantage = each.pop("advantage")
                assert (advantage is None) == (each["decision"]["reason"] != "kept")
            assert record == other
            called += sum(len(turn["calls"]) for turn in record["turns"])
    assert called, "tools ran"


def test_both_nodes_rolled_out_and_learned(finished: Path, two_nodes: Path, read_rows: Rows) -> None:
    rows, expected = read_rows(two_nodes, "rl"), read_rows(finished, "rl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row, other in zip(rows, expected[:STEPS], strict=True):
        assert (row["nodes/up"], row["nodes/groups/0"], row["nodes/groups/1"]) == (2, 1, 1)
        assert row["nodes/regranted"] == 0 and "nodes/up" not in other
        assert row["loss/policy"] == pytest.approx(other["loss/policy"], abs=1e-4)
        assert row["policy/version"] == other["policy/version"] > 0


@pytest.mark.parametrize("what", ["interrupted", "a node killed"])
def test_the_end_of_one_is_the_end_of_all(workshop: Any, finished: Path, fabric: str, what: str) -> None:
    """Ctrl-C on rank 0, or the process of another node gone: no exit code is 0, and no process is left, also
    without torchrun, which would end the others itself.

    The ranks that are interrupted use the worker; the others start a sandbox each, which takes most of the
    test's time."""
    directory: Path = workshop.directory / f"two nodes, {what}"
    sandbox = "redis" if what == "interrupted" else "local"
    more = ["--stages.0.steps=1000", "--engine.deterministic=true", f"--tool.sandbox={sandbox}"]
    arguments = [*options(finished, directory), *more]
    ranks = start_nodes(workshop, *arguments, torchrun=False, ROCSTAR_REDIS_URL=fabric)
    there: list[tuple[int, int]] = []
    try:
        assert ranks[0].stderr is not None
        lines = []
        while "2 nodes roll out" not in (line := ranks[0].stderr.readline()):
            lines.append(line)
            assert line, lines
        there = held(ranks)
        assert len(there) > 4 or sandbox == "redis", "ranks, their clients, and the processes of sandboxes"
        if what == "interrupted":
            ranks[0].send_signal(signal.SIGINT)
        else:
            ranks[1].kill()
    finally:
        codes = [code for code, _ in ended(ranks, patient=bool(there))]
    assert all(codes), codes
    for pid, descriptor in there:
        assert select.select([descriptor], [], [], DEADLINE_S)[0], f"process {pid} is left"
        os.close(descriptor)
