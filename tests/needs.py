"""Needs that a machine may lack: each test that is skipped for one names it in one form.

The last line of a run counts them and says how to provide each. A skip for another reason has its own text.
"""

import importlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import pytest


@dataclass(frozen=True, slots=True)
class Need:
    """`what` completes "72 tests that need ..."; `how` is a command or a place that provides it."""

    what: str
    how: str

    @property
    def reason(self) -> str:
        return f"needs {self.what}: {self.how}"

    def skip(self) -> NoReturn:
        pytest.skip(self.reason)

    def unless(self, is_available: bool) -> pytest.MarkDecorator:
        """Return a mark that skips the test unless the need is available."""
        return pytest.mark.skipif(not is_available, reason=self.reason)


REDIS = Need("redis-server", "apt-get install redis-server")
ROOT = Need("root", "sudo make test")
PUBLIC_PYTHON = Need("a Python of this version that all users may read", "apt-get install python3")
BROWSER = Need("chromium", "apt-get install chromium")
GPU = Need("a GPU", "python -m pytest -m gpu, on a machine with one")
GPU_NODES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
"""Device files of the drivers of NVIDIA and AMD."""
SGLANG = Need("SGLang", "make test-sglang")
SERVERS = Need("vLLM, SGLang and llama.cpp", "make test-servers")
AGENTS = Need(
    "foreign agents", "the commands of tests/engine/gateway/foreign_clients.py, then ROCSTAR_AGENTS=VENV:NPM make test"
)
LANDLOCK = Need("Landlock", "Linux 5.13 or newer, with landlock among the kernel's security modules")
COMPILER = Need("g++, Landlock and seccomp user notification", "apt-get install g++, on Linux 5.19 or newer")
BASH = Need("bash, Landlock and seccomp user notification", "apt-get install bash, on Linux 5.19 or newer")
ENGINE = Need("a container engine that answers `info`", "apt-get install podman")
IMAGE = Need(
    "the sandbox's image", "docker/sandbox-image LAYOUT --archive FILE, then ROCSTAR_SANDBOX_IMAGE=FILE make test"
)
PLANTED = Need("minutes", "make planted")
"""The tests that plant bugs or remove a layer of the sandbox."""
PLANTED_HERE = "ROCSTAR_PLANTED_HERE"
"""The variable that is set in a pytest which runs with a planted bug."""
GLIBC = Need("glibc", "a distribution that is built on it")


def package(name: str) -> Need:
    """Return the need for a Python package that `make setup` installs."""
    return Need(f"the package {name}", "make setup")


def time_for(variable: str) -> Need:
    return Need("minutes", f"{variable}=1 make test")


def redis_server() -> None:
    """Skip the running test if redis-server is not installed."""
    if shutil.which("redis-server") is None:
        REDIS.skip()


def commands(*names: str) -> None:
    """Skip the running test if one of the commands is not on the PATH."""
    for name in names:
        if shutil.which(name) is None:
            Need(name, f"apt-get install {name}").skip()


def modules(*names: str) -> list[Any]:
    """Import and return the modules; skip the running test if one is missing."""
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError:
            package(name.partition(".")[0]).skip()
    return found


def gguf_reader() -> list[Any]:
    """Return the modules gguf, numpy and accelerate; skip the running test if GGUF files cannot be read."""
    from rocstar.train.learner.import_gguf import TRANSFORMERS  # only where a test reads such a file

    found = modules("gguf", "numpy", "accelerate")
    if tuple(int(number) for number in version("transformers").split(".")[:2]) < TRANSFORMERS:
        Need("transformers 5.18", "pip install --upgrade 'rocstar[gguf]'").skip()
    return found


def is_set(variable: str) -> bool:
    return bool(os.environ.get(variable))


def plants_all() -> bool:
    """Return True in `make planted`."""
    return is_set("ROCSTAR_PLANT_ALL")


def left_out(reasons: Iterable[str]) -> str:
    """Return one line that counts the skipped tests by reason, or an empty text."""
    parts = []
    for reason, count in Counter(" ".join(reason.split()) for reason in reasons).most_common():
        number = f"{count} test{'s' if count > 1 else ''}"
        if need := re.fullmatch(r"needs (.+?): (.+)", reason):
            parts.append(f"{number} that need{'' if count > 1 else 's'} {need[1]}: {need[2]}")
        else:
            parts.append(f"{number}: {reason}")
    return f"left out: {'; '.join(parts)}" if parts else ""
