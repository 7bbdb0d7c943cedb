"""Runs the checks of interpreted/ in a process of its own: triton interprets from its import on, or never.

`make planted` runs those that plant an error, `make test` all others.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from ..needs import PLANTED, package, plants_all

HERE = Path(__file__).parent
DEADLINE_S = 540.0

pytestmark = package("triton").unless(find_spec("triton") is not None)


def check(which: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"),
            *("-o", "python_files=check_*.py", str(HERE / "interpreted"), "-k", which),
        ],
        cwd=HERE.parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    print(done.stdout[-2000:])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "failed" not in done.stdout


def test_kernels_in_the_interpreter() -> None:
    check("not planted")


@PLANTED.unless(plants_all())
def test_a_planted_error_is_caught_in_the_interpreter() -> None:
    check("planted")
