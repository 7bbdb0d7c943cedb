"""RUN/logs/console.log: everything said, with times, over all starts; never the reason that a run ends."""

import io
import logging
import os
import re
import warnings
from pathlib import Path

import pytest

from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.record.console import Console
from rocstar.train.record.manifest import ConsoleLog
from rocstar.train.record.run_directory import claim, discard_if_unused

AT = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00Z"


def opened(run: Path, *argv: str) -> ConsoleLog:
    return ConsoleLog(run, argv=["/usr/bin/rocstar", *argv], wall_clock=lambda: AT)


def lines(run: Path) -> list[str]:
    return (run / "logs" / "console.log").read_text().splitlines()


def test_it_has_a_line_per_start_and_all_that_was_said(tmp_path: Path) -> None:
    for resume in ([], ["--resume"]):
        with opened(tmp_path, "train", "coin.toml", *resume) as log:
            with Console(4, [], file=io.StringIO(), log=log) as console:
                console.note("a [bold]note[/bold]\n--- and more")
                console.on_step({"reward/mean": 0.5})
            assert lines(tmp_path)[-1] == f"{STAMP} step 1/4  reward 0.50", "it is there at once"
    start = re.compile(rf"{STAMP} started: \S*rocstar train coin.toml \(process {os.getpid()}\)")
    again = re.compile(rf"{STAMP} started: \S*rocstar train coin.toml --resume \(process {os.getpid()}\)")
    said = [f"{STAMP} a [bold]note[/bold]", "--- and more", f"{STAMP} step 1/4  reward 0.50"]
    found = lines(tmp_path)
    assert start.fullmatch(found[0]) and again.fullmatch(found[4])
    assert found[1:4] == found[5:] == said


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (ConfigError("rl.lr = -1 is not above 0"), "ended: rl.lr = -1 is not above 0"),
        (TrainingStopped("the gate"), "ended: the gate"),
        (KeyboardInterrupt(), "ended: interrupted"),
    ],
)
def test_it_says_what_ended_the_run(tmp_path: Path, error: BaseException, end: str) -> None:
    with pytest.raises(type(error)), opened(tmp_path):
        raise error
    assert lines(tmp_path)[1:] == [f"{STAMP} {end}"]


def test_a_bug_is_there_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), opened(tmp_path):
        _ = 1 // 0
    found = lines(tmp_path)
    assert found[1] == f"{STAMP} ended: Traceback (most recent call last):"
    assert found[-1].startswith("ZeroDivisionError") and any("_ = 1 // 0" in line for line in found)


def test_warnings_are_there_and_are_shown_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as outside of pytest
    with opened(tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a tensor was copied", stacklevel=1)
        logging.getLogger("rocstar.engine.x").warning("server %d is lost", 3)
        logging.getLogger("rocstar.engine.x").info("not worth a line")
    logging.getLogger("rocstar.engine.x").warning("after the run")
    assert shown == ["a tensor was copied"]
    assert capsys.readouterr().err == "server 3 is lost\nafter the run\n"
    first, second = lines(tmp_path)[1:]
    assert first.startswith(f"{STAMP} UserWarning: a tensor was copied (") and __file__ in first
    assert second == f"{STAMP} warning: server 3 is lost"


def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "console.log").symlink_to("/dev/full")
    out = io.StringIO()
    with opened(tmp_path) as log, Console(4, [], file=out, log=log) as console:
        console.note("still said")
    assert out.getvalue() == "still said\n"


def test_a_line_cut_by_a_full_disk_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with opened(tmp_path) as log:
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:8]))
        log.write("cut")
        monkeypatch.setattr(os, "write", write)
        log.write("whole")
    assert lines(tmp_path)[1:] == [STAMP[:8], f"{STAMP} whole"]


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with opened(tmp_path) as log:
        log.write("x")
    assert (tmp_path / "logs").read_text() == ""


def test_an_unused_run_directory_goes_with_its_log(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def fail() -> None:
        with opened(run):
            try:
                raise ConfigError("no model")
            finally:
                discard_if_unused(run)

    with claim(run, resume=False), pytest.raises(ConfigError):
        fail()
    assert not run.exists()
