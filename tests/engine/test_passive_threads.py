"""Threads of torch wait asleep, in every process of ours and its children, unless the user says otherwise."""

import subprocess
import sys

import pytest

from rocstar.engine import OURS, SAME_MATTER, wait_asleep


def test_threads_sleep_unless_the_user_set_otherwise() -> None:
    for name in ("PATH", *SAME_MATTER):
        environment = {name: "x"}
        wait_asleep(environment)
        assert environment == {name: "x"} | (OURS if name == "PATH" else {})


@pytest.mark.parametrize(
    "first", ["rocstar.train.cli", "rocstar.train.__main__", "rocstar.engine.inference.embedded.embedded"]
)
def test_it_is_set_when_torch_loads(first: str) -> None:
    """OpenMP reads the environment then, and never again."""
    code = f"""
import importlib.abc, os, sys
class Look(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Look())
import {first}
import torch
"""
    environment = {"PATH": "/usr/bin:/bin"}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert told.stdout.splitlines()[0] == OURS["OMP_WAIT_POLICY"]
