"""The command in our messages runs in the shell of the reader."""

import os
import sys
from pathlib import Path

import pytest

from rocstar.train.cli.training import executable_name


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an environment in it, and another environment beside it."""
    for environment in ("my env", "other"):
        folder = tmp_path / environment / "bin"
        folder.mkdir(parents=True)
        (folder / "rocstar").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my env" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    return tmp_path


def test_by_its_name_where_the_path_leads_to_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([str(place / "my env" / "bin"), str(place / "other" / "bin")]))
    assert executable_name() == "rocstar"


def test_by_its_place_where_it_leads_nowhere_or_to_another(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert executable_name() == "'my env/bin/rocstar'"
    monkeypatch.setenv("PATH", str(place / "other" / "bin"))
    assert executable_name() == "'my env/bin/rocstar'"
    monkeypatch.chdir(place / "other")
    assert executable_name() == f"'{place}/my env/bin/rocstar'"


def test_by_its_name_where_no_script_was_installed(place: Path) -> None:
    (place / "my env" / "bin" / "rocstar").unlink()
    assert executable_name() == "rocstar"
