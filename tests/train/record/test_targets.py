"""What `--out` names is looked at before the work, and no result is lost after it."""

import errno
import os
from pathlib import Path

import pytest

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record import run_directory
from rocstar.train.record.run_directory import check_file, make_folder, write_or_rescue


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_may_be_written_and_leaves_no_trace_before(tmp_path: Path) -> None:
    check_file(tmp_path / "a.jsonl", force=False)
    assert names(tmp_path) == []


def test_a_file_that_is_there_needs_force_and_stays(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("old")
    with pytest.raises(ConfigError, match=r"exists; take another file, or pass --force"):
        check_file(tmp_path / "a.jsonl", force=False)
    check_file(tmp_path / "a.jsonl", force=True)
    assert (tmp_path / "a.jsonl").read_text() == "old" and names(tmp_path) == ["a.jsonl"]


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_file_is_refused(tmp_path: Path, force: bool) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for place, words in (
        (tmp_path, "is a folder"),
        (tmp_path / "gone" / "a.jsonl", "is in no folder that exists"),
        (tmp_path / "file" / "a.jsonl", "is in no folder that exists"),
        (tmp_path / "pipe", "a device or a pipe"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_file(place, force=force)


def test_a_folder_that_takes_no_files_is_refused_at_once() -> None:
    """Nobody, root neither, makes files in /proc."""
    with pytest.raises(ConfigError, match=r"'/proc/a.jsonl' cannot be written \(.*\); choose another --out"):
        check_file(Path("/proc/a.jsonl"), force=False)
    with pytest.raises(ConfigError, match=r"'/proc/folder' cannot be written"):
        make_folder(Path("/proc/folder"))


def test_a_full_disk_is_noticed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_directory.os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        check_file(tmp_path / "a.jsonl", force=False)
    with pytest.raises(ConfigError, match="No space left"):
        make_folder(tmp_path / "folder")
    assert names(tmp_path) == []


def test_a_folder_must_be_new_or_empty(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == []
    (tmp_path / "a" / "b" / "mine").touch()
    with pytest.raises(ConfigError, match="is not empty, and nothing is written over"):
        make_folder(tmp_path / "a" / "b")
    with pytest.raises(ConfigError, match="is a file"):
        make_folder(tmp_path / "a" / "b" / "mine")


def test_what_cannot_be_written_at_the_end_is_rescued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: Path) -> None:
        (folder / "result").write_text("1")

    monkeypatch.setattr(run_directory.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "out").mkdir()
    write_or_rescue(tmp_path / "out", write)
    assert (tmp_path / "out" / "result").read_text() == "1"
    (tmp_path / "gone").touch()
    with pytest.raises(ConfigError, match=r"could not be written .* the results are in") as told:
        write_or_rescue(tmp_path / "gone", write)
    rescued = Path(str(told.value).rpartition("are in ")[2].strip("'"))
    assert (rescued / "result").read_text() == "1"
