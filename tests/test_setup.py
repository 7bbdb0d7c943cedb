"""The build: compilers at a time, warnings, phases, and the packages that it installs."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import setuptools
from packaging.requirements import Requirement

from . import needs
from .patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """setup.py as a module, on a machine of 16 CPUs."""
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    spec = importlib.util.spec_from_file_location("rocstar_setup", ROOT / "setup.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(module, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(module, "MEMORY_LIMIT", tmp_path / "memory.max")
    monkeypatch.delenv("CMAKE_BUILD_PARALLEL_LEVEL", raising=False)
    return module


@pytest.mark.parametrize(
    ("level", "available_gb", "limit", "jobs"),
    [
        ("5", 1.0, "max", 5),
        ("", 64.0, "max", 16),
        ("", 64.0, None, 16),
        ("", 6.1, "max", 4),
        ("", 64.0, str(4 << 30), 2),
        ("", 0.5, "max", 1),
        ("0", 64.0, "max", 16),
    ],
)
def test_compilers_at_a_time_are_the_users_or_what_cpus_and_memory_allow(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, level: str, available_gb: float, limit: str | None, jobs: int
) -> None:
    monkeypatch.setenv("CMAKE_BUILD_PARALLEL_LEVEL", level)
    available = round(available_gb * 2**20)
    build.MEMORY.write_text(f"MemTotal:       99 kB\nMemAvailable:   {available} kB\nBuffers: 1 kB\n")
    if limit is not None:
        build.MEMORY_LIMIT.write_text(f"{limit}\n")
    assert build.jobs() == jobs


@pytest.mark.parametrize("is_error", [False, True])
def test_a_warning_is_an_error_only_where_the_project_tests_itself(tmp_path: Path, is_error: bool) -> None:
    needs.commands("cmake", "make")
    options = ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *(["-DROCSTAR_WERROR=ON"] if is_error else [])]
    command = ["cmake", "-G", "Unix Makefiles", "-S", str(ROOT), "-B", str(tmp_path), *options]
    subprocess.run(command, check=True, capture_output=True)
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    assert commands and all(("-Werror" in one["command"].split()) == is_error for one in commands)


def phase(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / ".ci" / "phase"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_a_phase_prints_one_line_and_the_output_of_a_command_that_fails(tmp_path: Path) -> None:
    ended = phase(tmp_path, "compile: a/b", "sh", "-c", "echo quiet; echo too >&2")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.fullmatch(r"rocstar: compile: a/b +\d+ s\n", ended.stdout)
    ended = phase(tmp_path, "compile: a/b", "sh", "-c", "echo why; exit 3")
    assert ended.returncode == 3 and "failed after" in ended.stdout
    log = "build/logs/compile-a-b.log"
    assert ended.stderr.startswith("why\n") and ended.stderr.endswith(f"is in {log}\n")
    assert (tmp_path / log).read_text() == "why\n"


@pytest.mark.parametrize("extras", [["train", "fabric", "chat"], ["dev"]])
def test_requirements_are_those_that_pip_would_install_with_the_extras(extras: list[str]) -> None:
    command = [sys.executable, str(ROOT / ".ci" / "requirements"), *extras]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional, waiting = project["optional-dependencies"], list(extras)
    for extra in waiting:
        names = [name for line in optional[extra] for name in Requirement(line).extras if "rocstar[" in line]
        waiting += [name for name in names if name not in waiting]
    expected = {*project["dependencies"], *(line for extra in waiting for line in optional[extra])}
    assert set(printed.splitlines()) == {line for line in expected if not line.startswith("rocstar[")}
