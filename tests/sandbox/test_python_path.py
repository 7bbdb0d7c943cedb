"""The sandbox of a rocstar that comes from PYTHONPATH, as after `pip install --target FOLDER`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocstar.sandbox
from rocstar.sandbox.pool import paths

from .. import needs
from ..patience import PATIENCE_S
from .attacks.world_readable import copy_packages, find_python, make_environment

CLI = "import sys; from rocstar.sandbox import cli; sys.exit(cli.main(sys.argv[1:]))"
NOBODY = 65_534
USES = """
import sys, numpy, sympy
print(numpy.array([1, 2]).sum(), sympy.Integer(3), sum(path == {site!r} for path in sys.path))
try:
    import beside.later
    print("later")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    """A folder that every user may read, with rocstar, numpy, sympy and a package of two modules."""
    with tempfile.TemporaryDirectory(prefix="rocstar-site-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        copy_packages(folder)
        (folder / "beside").mkdir()
        (folder / "beside" / "__init__.py").write_text("")
        (folder / "beside" / "later.py").write_text("")
        yield folder


def sandbox(
    *words: str, path: str, python: str | None = None, user: int | None = None, cwd: str = "/", code: str = ""
) -> "subprocess.CompletedProcess[str]":
    """The command line with an environment of nothing else, of an interpreter that has no rocstar."""
    base = python or find_python() or getattr(sys, "_base_executable", sys.executable)
    return subprocess.run(
        [base, "-c", CLI, *words],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path},
        input=code,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=cwd,
        check=False,
        **({} if user is None else {"user": user, "group": user, "extra_groups": []}),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("by_pip", "user"), [(True, NOBODY if os.geteuid() == 0 else None), (False, None)])
def test_programs_import_what_lies_beside_rocstar_and_read_it_if_pip_put_it_there(
    site: Path, by_pip: bool, user: int | None
) -> None:
    needs.modules("numpy", "sympy")
    if user is not None and find_python() is None:
        needs.PUBLIC_PYTHON.skip()
    metadata = site / "rocstar-0.1.0.dist-info"
    shutil.rmtree(metadata, ignore_errors=True)
    if by_pip:
        metadata.mkdir(mode=0o755)
    told = sandbox("doctor", "--json", path=str(site), user=user)
    assert told.returncode == 0, told.stdout + told.stderr
    report = json.loads(told.stdout)
    assert report["tier"] in ("A", "B")
    note = next(one["note"] for one in report["limits"] if one["name"] == "packages")
    assert (str(site) in note) == (not by_pip)
    words = ("run", "-", "--wall-s", "60")
    done = sandbox(*words, path=f"{site}:/elsewhere", user=user, code=USES.format(site=str(site)))
    assert done.returncode == 0, done.stderr
    if "landlock" not in {one["name"] for one in report["layers"] if one["active"]}:
        needs.LANDLOCK.skip()
    assert done.stdout == f"3 3 1\n{'later' if by_pip else 'PermissionError'}\n"


@pytest.mark.parametrize("path", [".", ":/elsewhere"], ids=["relative", "empty"])
def test_the_current_folder_is_not_passed_on(site: Path, path: str) -> None:
    """The program runs: the zygote has the package of its pool, and nothing that lies beside it."""
    done = sandbox("run", "-", path=path, cwd=str(site), code="import sys\nprint(sys.path)")
    assert done.returncode == 0, done.stderr
    assert str(site) not in done.stdout and done.stdout.startswith("[")
    needs.modules("numpy", "sympy")
    done = sandbox("run", "-", path=".", cwd=str(site), code="import numpy")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "PYTHONPATH has it in ., which the sandbox does not use" in done.stderr


def test_a_zygote_has_the_package_of_its_pool_and_not_that_of_the_environment(site: Path, tmp_path: Path) -> None:
    base = find_python() or sys.executable
    other = make_environment(tmp_path / "venv", base) / "rocstar" / "sandbox"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise RuntimeError('another rocstar')\n")
    python = str(tmp_path / "venv" / "bin" / "python")
    done = sandbox("run", "-", path=str(site), python=python, code="print(1)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_only_an_absolute_entry_that_has_this_rocstar_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "rocstar").mkdir(parents=True)
    (tmp_path / "site" / "rocstar" / "sandbox").symlink_to(Path(rocstar.sandbox.__file__).parent)
    (tmp_path / "other" / "rocstar" / "sandbox").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for entries in ("", "site", ":site:", str(tmp_path / "other"), str(tmp_path / "gone")):
        monkeypatch.setenv("PYTHONPATH", entries)
        assert paths.own_entry() == "" and paths.target_packages() == []
    site = str(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'other'}:{site}/")
    assert paths.own_entry() == site and paths.target_packages() == []
    (tmp_path / "site" / "rocstar-1.dist-info").mkdir()
    assert paths.target_packages() == [site]
    monkeypatch.setenv("HOME", str(tmp_path / "site" / "home"))
    assert paths.target_packages() == [], "a folder around a home is never opened"
