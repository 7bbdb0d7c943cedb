"""A run directory belongs to one process, is never written over, and is taken back if nothing happened."""

import fcntl
from pathlib import Path

import pytest

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import claim, discard_if_unused, is_held


def begin(directory: Path, row: str = "{}\n") -> None:
    claim(directory, resume=False).close()
    (directory / "metrics.jsonl").write_text(row)


def test_a_new_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    with claim(tmp_path / "a" / "b", resume=False):
        assert (tmp_path / "a" / "b" / "lock").read_text().strip().isdigit()


def test_nobody_else_gets_it_while_it_is_held(tmp_path: Path) -> None:
    with claim(tmp_path / "run", resume=False):
        (tmp_path / "run" / "metrics.jsonl").touch()
        for resume in (False, True):
            with pytest.raises(ConfigError, match="in use by another process"):
                claim(tmp_path / "run", resume=resume)
    claim(tmp_path / "run", resume=True).close()


def test_who_only_looks_keeps_nobody_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer has the lock while it asks whether the run is held."""
    begin(tmp_path)
    looking = (tmp_path / "lock").open("rb")
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr("time.sleep", lambda seconds: looking.close())
    with claim(tmp_path, resume=True):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_a_run_is_only_gone_on_with(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with pytest.raises(ConfigError, match="holds a run; pass --resume"):
        claim(tmp_path / "run", resume=False)
    claim(tmp_path / "run", resume=True).close()
    with pytest.raises(ConfigError, match="holds no run to resume"):
        claim(tmp_path / "other", resume=True)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "trajectories"])
def test_rollouts_without_a_learner_are_gone_on_with_by_rollouts_only(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match="holds a run; pass --resume"):
        claim(tmp_path, resume=False)
    claim(tmp_path, resume=True, mark=name).close()
    other = "trajectories" if name == "metrics.jsonl" else "metrics.jsonl"
    with pytest.raises(ConfigError, match="holds no run to resume"):
        claim(tmp_path, resume=True, mark=other)


def test_records_make_a_directory_used(tmp_path: Path) -> None:
    claim(tmp_path / "run", resume=False).close()
    (tmp_path / "run" / "trajectories").mkdir()
    discard_if_unused(tmp_path / "run")
    assert not (tmp_path / "run").exists(), "an empty folder is no record"
    claim(tmp_path / "run", resume=False).close()
    (tmp_path / "run" / "trajectories").mkdir()
    (tmp_path / "run" / "trajectories" / "step_000001.jsonl").touch()
    discard_if_unused(tmp_path / "run")
    assert (tmp_path / "run" / "trajectories" / "step_000001.jsonl").exists()


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        claim(tmp_path / "file" / "run", resume=False)


def test_an_unused_directory_goes_away(tmp_path: Path) -> None:
    begin(tmp_path / "run", row="")
    (tmp_path / "run" / "logs").mkdir()
    discard_if_unused(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_used_directory_and_files_of_others_stay(tmp_path: Path) -> None:
    begin(tmp_path / "used")
    discard_if_unused(tmp_path / "used")
    assert (tmp_path / "used" / "metrics.jsonl").exists()
    begin(tmp_path / "shared", row="")
    (tmp_path / "shared" / "notes.txt").touch()
    discard_if_unused(tmp_path / "shared")
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["notes.txt"]
