"""What a person is told to type is found by the shell that they type it into."""

import os
import sys
from pathlib import Path

import pytest

from rocstar.train.cli.own_command import own_command


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
    assert own_command() == "rocstar"


def test_by_its_place_where_it_leads_nowhere_or_to_another(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_command() == "'my env/bin/rocstar'"
    monkeypatch.setenv("PATH", str(place / "other" / "bin"))
    assert own_command() == "'my env/bin/rocstar'"
    monkeypatch.chdir(place / "other")
    assert own_command() == f"'{place}/my env/bin/rocstar'"


def test_by_its_name_where_no_script_was_installed(place: Path) -> None:
    (place / "my env" / "bin" / "rocstar").unlink()
    assert own_command() == "rocstar"
