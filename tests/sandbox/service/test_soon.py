"""The service's thread asks for short slices, and what it starts has the usual ones."""

import os
import subprocess
import sys

import pytest

from rocstar.sandbox.service import soon

SHOWS = "from rocstar.sandbox.service.soon import run_soon, slice_of_thread as s"
NEW = pytest.mark.skipif(not soon._takes_slices(), reason="needs Linux 6.12: a newer kernel")


def said(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@NEW
def test_the_thread_gets_its_slice_and_keeps_its_priority() -> None:
    code = f"import os\n{SHOWS}\nos.nice(3)\nprint(run_soon(), s(), os.getpriority(os.PRIO_PROCESS, 0))"
    assert said(code) == ["True", str(soon.SLICE_NS), str(os.getpriority(os.PRIO_PROCESS, 0) + 3)]


@NEW
def test_what_it_starts_has_the_usual_slice() -> None:
    child = f"{SHOWS}\nprint(s())"
    code = f"import subprocess, sys\n{SHOWS}\nusual = s()\nrun_soon()\nprint(usual, flush=True)\n"
    usual, inherited = said(f"{code}subprocess.run([sys.executable, '-c', {child!r}])")
    assert usual == inherited != str(soon.SLICE_NS)


@pytest.mark.parametrize("release", ["6.11.9", "5.15.0-91-generic", "odd", "6"])
def test_an_older_kernel_is_not_asked(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(soon.platform, "release", lambda: release)
    assert not soon.run_soon()
