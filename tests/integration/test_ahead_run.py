"""Training beside the rollouts: bounded staleness, spans that say which version wrote what, and a resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocstar.engine.record.files import record_files
from rocstar.engine.record.json_record import from_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.types import Trajectory

Rows = Callable[..., list[dict[str, Any]]]
OPTIONS = (
    "--rl.max_staleness=2",
    "--stages.0.steps=5",
    "--stages.1.steps=2",
    "--engine.max_running=12",
    "--checkpoint.keep_every=1",
)


@pytest.fixture(scope="session")
def ahead(workshop: Any) -> Path:
    directory: Path = workshop.directory / "ahead"
    workshop.succeed("train", "coin.toml", "--output-dir", str(directory), *OPTIONS)
    return directory


def by_step(directory: Path) -> dict[int, list[Trajectory]]:
    files = record_files(directory / "trajectories")
    return {step: [from_record(r) for r in read_records(path)] for step, path in files.items()}


def test_staleness_stays_within_the_bound_and_happens(ahead: Path, read_rows: Rows) -> None:
    rows = read_rows(ahead, "rl")
    found = [row["policy/staleness_max"] for row in rows]
    assert [row["step"] for row in rows] == list(range(1, 8))
    assert max(found) in (1, 2) and found[0] == found[5] == 0, "a stage begins with what is served then"
    # num_updates_per_batch does not count: a version is a publish, one per step.
    before, trajectories = 0, by_step(ahead)
    for row in rows:
        oldest = min(span.version for t in trajectories[row["step"]] for span in t.version_spans)
        assert before - oldest == row["policy/staleness_max"]
        before = row["policy/version"]


def test_every_attempt_comes_once_and_every_token_has_its_version(ahead: Path) -> None:
    trajectories = [t for step in by_step(ahead).values() for t in step]
    assert len({str(t.key) for t in trajectories}) == len(trajectories) == 7 * 2 * 8
    for t in trajectories:
        covered = [k for span in t.version_spans for k in range(span.start, span.end)]
        assert covered == np.flatnonzero(~np.isnan(t.logprobs)).tolist()
        versions = [span.version for span in t.version_spans]
        assert versions == sorted(versions)


def test_the_two_ways_of_training_do_not_mix(ahead: Path, workshop: Any) -> None:
    ended = workshop.main(
        "train", "coin.toml", "--output-dir", str(ahead), *OPTIONS[1:], "--stages.1.steps=3", "--resume"
    )
    assert ended.returncode == 2 and "max_staleness = 0" in ended.stderr
