"""What a test needs and a machine may lack, in one form: `make test` counts it, and says how to get it.

A test that is left out for another reason gives it in its own words; the last line then repeats them.
"""

import importlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import pytest


@dataclass(frozen=True, slots=True)
class Need:
    """`what` stands in "72 tests that need ..."; `how` is the command, or else the place, that has it."""

    what: str
    how: str

    @property
    def reason(self) -> str:
        return f"needs {self.what}: {self.how}"

    def skip(self) -> NoReturn:
        pytest.skip(self.reason)

    def unless(self, there: bool) -> pytest.MarkDecorator:
        """A mark that leaves the test out unless the thing is there."""
        return pytest.mark.skipif(not there, reason=self.reason)


REDIS = Need("redis-server", "apt-get install redis-server")
ROOT = Need("root", "sudo make test")
PUBLIC_PYTHON = Need("a Python of this version that all users may read", "apt-get install python3")
BROWSER = Need("chromium", "apt-get install chromium")
GPU = Need("a GPU", "python -m pytest -m gpu, on a machine with one")
GPU_NODES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
"""Of the drivers of NVIDIA and AMD."""
SGLANG = Need("SGLang", "make test-sglang")
SERVERS = Need("vLLM, SGLang and llama.cpp", "make test-servers")
LANDLOCK = Need("Landlock", "Linux 5.13 or newer, with landlock among the kernel's security modules")
COMPILER = Need("g++, Landlock and seccomp user notification", "apt-get install g++, on Linux 5.19 or newer")
BASH = Need("bash, Landlock and seccomp user notification", "apt-get install bash, on Linux 5.19 or newer")
ENGINE = Need("a container engine that answers `info`", "apt-get install podman")
IMAGE = Need(
    "the sandbox's image",
    "docker/sandbox-image LAYOUT --archive FILE, then ROCSTAR_SANDBOX_IMAGE=FILE make test",
)
PLANTED = Need("minutes", "make planted")
"""To plant a mistake, or to take a layer away, and see that it is noticed."""
PLANTED_HERE = "ROCSTAR_PLANTED_HERE"
"""The variable that tells a pytest that it runs with such a mistake."""
GLIBC = Need("glibc", "a distribution that is built on it")


def package(name: str) -> Need:
    """A Python package that `make setup` installs and another environment may lack."""
    return Need(f"the package {name}", "make setup")


def time_for(variable: str) -> Need:
    return Need("minutes", f"{variable}=1 make test")


def redis_server() -> None:
    """Leaves the running test out where there is no redis-server."""
    if shutil.which("redis-server") is None:
        REDIS.skip()


def commands(*names: str) -> None:
    """Leaves the running test out where one of these is not on the PATH."""
    for name in names:
        if shutil.which(name) is None:
            Need(name, f"apt-get install {name}").skip()


def modules(*names: str) -> list[Any]:
    """These modules; the running test is left out where one cannot be imported."""
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError:
            package(name.partition(".")[0]).skip()
    return found


def gguf_reader() -> list[Any]:
    """The modules gguf, numpy and accelerate; the running test is left out where no GGUF file can be read."""
    from rocstar.train.learner.import_gguf import TRANSFORMERS  # only where a test reads such a file

    found = modules("gguf", "numpy", "accelerate")
    if tuple(int(number) for number in version("transformers").split(".")[:2]) < TRANSFORMERS:
        Need("transformers 5.18", "pip install --upgrade 'rocstar[gguf]'").skip()
    return found


def is_set(variable: str) -> bool:
    return bool(os.environ.get(variable))


def hide_gpus(selected: str, environ: MutableMapping[str, str], nodes: Iterable[Path] = GPU_NODES) -> None:
    """Hide the GPUs from this process and its children, unless `selected` (of `-m`) is the marker `gpu`.

    The other tests are of the CPU, and several ranks of one test would take the same GPU. To be called before
    a driver is asked for its devices; torch for AMD's GPUs reads the same variable.
    """
    if selected != "gpu" and any(node.exists() for node in nodes):
        environ["CUDA_VISIBLE_DEVICES"] = "-1"


def plants_all() -> bool:
    """Whether this is `make planted`."""
    return is_set("ROCSTAR_PLANT_ALL")


def left_out(reasons: Iterable[str]) -> str:
    """One line about skipped tests, of the reason of each; empty if there are none."""
    parts = []
    for reason, count in Counter(" ".join(reason.split()) for reason in reasons).most_common():
        number = f"{count} test{'s' if count > 1 else ''}"
        if need := re.fullmatch(r"needs (.+?): (.+)", reason):
            parts.append(f"{number} that need{'' if count > 1 else 's'} {need[1]}: {need[2]}")
        else:
            parts.append(f"{number}: {reason}")
    return f"left out: {'; '.join(parts)}" if parts else ""
