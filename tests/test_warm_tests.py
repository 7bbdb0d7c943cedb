"""Test processes are forks of one that has imported what they test."""

import os
import subprocess
from pathlib import Path

from .patience import PATIENCE_S
from .warm_python import warm

ROOT = Path(__file__).parents[1]
IMPORTED_ONCE = """
import os, sys
from pathlib import Path
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "beside"))
STREAMS = (sys.stdout, sys.stderr)
with open(HERE / "imported", "a") as file:
    print(os.getpid(), file=file)

@pytest.mark.parametrize("k", range(4))
def test_it(k: int) -> None:
    import found_on_the_path

    assert (HERE / "imported").read_text().split() != [str(os.getpid())]
    assert [stream.fileno() for stream in STREAMS] == [1, 2]
    print("to the streams of the import", file=STREAMS[1])
"""
LEFT_OUT = "import pytest\n\npytest.skip('not today', allow_module_level=True)\n"
BROKEN = "def test_it() -> None: ...\n\n1 / 0\n"


def run(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Two test processes; a file of ours has its conftest loaded."""
    ours = "tests/test_patience.py"
    return subprocess.run(
        [str(warm().executable), "-m", "pytest", "-n2", "-rsE", "-p", "no:cacheprovider", ours, *paths],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_test_file_is_imported_once_and_what_it_did_to_the_path_stays(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "found_on_the_path.py").touch()
    for name, text in (("test_once.py", IMPORTED_ONCE), ("test_left_out.py", LEFT_OUT)):
        (tmp_path / name).write_text(text)
    ended = run(tmp_path)
    assert ended.returncode == 0 and "not today" in ended.stdout, ended.stdout + ended.stderr
    assert len((tmp_path / "imported").read_text().split()) == 1


def test_a_file_that_cannot_be_imported_is_an_error_of_the_session(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN)
    ended = run(tmp_path)
    assert ended.returncode != 0 and "ZeroDivisionError" in ended.stdout, ended.stdout + ended.stderr
