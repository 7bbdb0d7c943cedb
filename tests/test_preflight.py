"""What the machine must have is named twice, in README's apt line and by .ci/preflight: the same packages."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .patience import PATIENCE_S

ROOT = Path(__file__).parents[1]


def preflight(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script on a machine that has the commands in `path` only."""
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, ROOT / ".ci" / "preflight", *arguments],
        env={"PATH": str(path)}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def advised(message: str) -> list[str]:
    (line,) = re.findall(r"^(?:rocstar: .*run: )?sudo apt-get install -y (.*)$", message, flags=re.M)[:1]
    return line.split()


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder with all that the build calls, but no cmake."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("g++", "make"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def test_readme_installs_what_the_preflight_names_on_a_bare_machine(tmp_path: Path) -> None:
    ended = preflight(tmp_path)
    assert ended.returncode == 1
    assert advised(ended.stderr) == advised((ROOT / "README.md").read_text(encoding="utf-8"))


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / ".ci" / "bare", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_the_script_for_a_bare_machine_runs_those_lines() -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    lines = [line.partition("#")[0].rstrip() for line in "".join(blocks[:2]).splitlines()]
    assert [line.split()[:2] for line in lines] == [["sudo", "apt-get"], ["make", "quickstart"], ["make", "test"]]
    assert bare("--list").stdout.splitlines() == lines
    assert bare("--list", "--only", "test").stdout.splitlines() == [lines[0], "make test"]
    assert bare("--list", "--only", "quickstart", "--", "A=b c").stdout.splitlines()[1] == ("make quickstart A=b\\ c")


def test_a_wrong_option_of_that_script_is_named() -> None:
    for wrong in (["--as", "nobody"], ["--only", "lint"], ["--nonsense"]):
        ended = bare(*wrong)
        assert ended.returncode == 2 and wrong[0] in ended.stderr


def test_one_message_names_only_what_is_missing(commands: Path) -> None:
    (commands / "g++").unlink()
    ended = preflight(commands, "no-such-python")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert advised(ended.stderr) == ["python3", "python3-venv", "python3-dev", "g++", "cmake"]


def test_headers_of_python_are_missed(commands: Path, tmp_path: Path) -> None:
    """Debian's python3 comes without Python.h and without ensurepip: each has a package of its own."""
    bare = tmp_path / "bare.py"
    bare.write_text(
        "import sys, sysconfig\n"
        "sysconfig.get_path = lambda name: '/nowhere'\n"
        "sys.modules['ensurepip'] = None\n"
        "exec(sys.argv[2])\n"
    )
    python = commands / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {bare} "$@"\n')
    python.chmod(0o755)
    assert advised(preflight(commands).stderr) == ["python3-venv", "python3-dev", "cmake"]


def test_a_machine_without_cmake_only_may_go_on(commands: Path) -> None:
    os.symlink(sys.executable, commands / "python3")
    ended = preflight(commands, sys.executable)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert preflight(commands, "--packages", sys.executable).stdout.split() == ["cmake", "redis-server"]
