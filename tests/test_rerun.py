"""A test that fails once and passes alone is named, and does not make a run red; any other failure does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .patience import PATIENCE_S
from .rerun import MOST

FLAKY = """
from pathlib import Path
def test_flaky():
    mark = Path({mark!r})
    was_there = mark.exists()
    mark.touch()
    assert was_there
"""
FAILS = "def test_fails():\n    assert False\n"
MANY = f"import pytest\n@pytest.mark.parametrize('k', range({MOST}))\ndef test_it(k):\n    assert False\n"
SHARED = f"""
import pytest
@pytest.fixture(scope="session")
def shared():
    from other import test_flaky
    test_flaky()
@pytest.mark.parametrize("k", range({MOST + 1}))
def test_it(shared, k):
    pass
"""
CRASHES = "import os\ndef test_crash():\n    os._exit(3)\n"
PASSED = "flaky: test_one.py::test_flaky failed, then passed alone"


@pytest.mark.parametrize(
    ("second", "processes", "code", "last"),
    [
        ("", 2, 0, PASSED),
        (FAILS, 0, 1, "failed: test_two.py::test_fails failed, and failed again alone"),
        ("import none_such\n", 2, 1, None),
        (CRASHES, 2, 1, None),
        ("def test_stop():\n    raise KeyboardInterrupt\n", 0, 2, None),
        (MANY, 0, 1, None),
        (SHARED, 0, 0, f"flaky: test_two.py::test_it[{MOST}] failed, then passed alone"),
    ],
    ids=["flaky", "fails", "not collected", "crash", "interrupt", "too many", "fixture"],
)
def test_last_line_and_exit_code(second: str, processes: int, code: int, last: str | None, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(FLAKY.format(mark=str(tmp_path / "mark")))
    (tmp_path / "other.py").write_text(FLAKY.format(mark=str(tmp_path / "other_mark")))
    (tmp_path / "test_two.py").write_text(second)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.rerun", "-q", f"-n{processes}"]
    ended = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    lines = ended.stdout.strip().splitlines()
    if last is None:
        assert "alone" not in ended.stdout
    else:
        assert lines[-1] == last and PASSED in lines
