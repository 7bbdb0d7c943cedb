"""The built wheel in a fresh virtual environment outside the tree, without a network.

    .ci/wheel --> wheel --> pip --no-deps into a venv
                              + links to the base dependencies, nothing else       (base)
                              + links to those of the extra `train`, torch within  (train)

What is linked is what the wheel's own metadata asks for, followed through the metadata of what it names: a
dependency that somebody forgot to list is not there.
"""

import fcntl
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..needs import Need
from ..patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
BUILD = Need("cmake and a C++ compiler", "apt-get install cmake g++")
GUIDE = ROOT / "docs" / "guide" / "sandbox-alone.md"
DEADLINE_S = 1700.0
"""Of a build of all that is compiled, on a machine with much other work."""

pytestmark = [
    BUILD.unless(bool(shutil.which("cmake") and (shutil.which("c++") or shutil.which("g++")))),
    pytest.mark.timeout(2400),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all test processes, which one of them at a time may build in."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    (folder / "wheel").mkdir(exist_ok=True)
    with (folder / "wheel" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "wheel" / "dist").exists():
            command = ["bash", ".ci/wheel", str(folder / "wheel" / "dist"), sys.executable]
            subprocess.run(command, cwd=ROOT, check=True, timeout=DEADLINE_S, capture_output=True, text=True)
        for name, extras in (("base", ()), ("train", ("train",))):
            if not (folder / "wheel" / name).exists():
                make_environment(folder / "wheel" / name, wheel_in(folder / "wheel"), extras)
    return folder / "wheel"


def wheel_in(shared: Path) -> Path:
    [wheel] = (shared / "dist").glob("*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path, extras: Sequence[str]) -> None:
    """A virtual environment with the wheel, and links to what its metadata asks for with these extras."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=PATIENCE_S)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    pip += ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", str(wheel)]
    subprocess.run(pip, check=True, timeout=PATIENCE_S)
    [packages] = (folder / "lib").glob("python*/site-packages")
    [metadata] = packages.glob("rocstar-*.dist-info/METADATA")
    lines = metadata.read_text().partition("\n\n")[0].splitlines()
    asked = [line.partition(":")[2].strip() for line in lines if line.startswith("Requires-Dist:")]
    for name in closure(asked, extras):
        distribution = importlib.metadata.distribution(name)
        site = Path(str(distribution.locate_file("")))
        for top in tops(distribution):
            if not (packages / top).exists():  # a folder that two distributions share
                (packages / top).symlink_to(site / top)


def tops(distribution: importlib.metadata.Distribution) -> set[str]:
    """What a distribution has in the folder of packages itself.

    One without a wheel, which Debian 12's pip installs by setup.py, may list sources in place of files;
    its modules stand in top_level.txt.
    """
    site = Path(str(distribution.locate_file("")))
    files = distribution.files
    assert files, f"{distribution.metadata['Name']} does not list its files"
    names = {file.parts[0] for file in files} - {"..", "__pycache__"}
    for module in (distribution.read_text("top_level.txt") or "").split():
        names |= {module, *(path.name for path in site.glob(f"{module}.*"))}
    return {name for name in names if (site / name).exists()}


def closure(lines: Sequence[str], extras: Sequence[str]) -> set[str]:
    """The distributions that a package with these requirements comes to; extras may name it itself."""
    found: set[str] = set()
    waiting = _that_hold(lines, {"", *extras})
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name == "rocstar":
            waiting += _that_hold([line for line in lines if "extra ==" in line], wanted.extras)
        elif name not in found:
            found.add(name)
            waiting += _that_hold(importlib.metadata.requires(name) or [], {"", *wanted.extras})
    return found


def _that_hold(lines: Sequence[str], extras: Iterable[str]) -> list[Requirement]:
    """Those that are asked for on this machine, with these extras."""
    return [
        wanted
        for wanted in map(Requirement, lines)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras)
    ]


class Environment:
    """One of the environments, and a folder to work in that has nothing else."""

    def __init__(self, venv: Path, work: Path) -> None:
        self.work = work
        self._bin = venv / "bin"
        [self.packages] = (venv / "lib").glob("python*/site-packages")

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        return subprocess.run(
            ["bash" if command[0] == "bash" else self._bin / command[0], *command[1:]],
            env={"PATH": f"{self._bin}:/usr/bin:/bin", "HF_HUB_OFFLINE": "1", **kept},
            cwd=self.work,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )


@pytest.fixture
def base(shared: Path, tmp_path: Path) -> Environment:
    return Environment(shared / "base", tmp_path)


def test_base_dependencies_are_enough_for_the_sandbox(base: Environment) -> None:
    assert base.run("python", "-c", "import torch").returncode == 1, "this environment has too much"
    assert base.run("python", "-c", "import numpy").returncode == 1, "this environment has too much"
    ran = base.run("rocstar", "sandbox", "run", "-", stdin="print(6 * 7)")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "42\n", "")
    shown = base.run("rocstar", "sandbox", "doctor")
    assert shown.returncode == 0 and shown.stdout.startswith("tier "), shown.stderr
    assert "flavour numeric is left out" in shown.stdout
    assert base.run("rocstar", "--version").stdout.startswith("rocstar 0.")
    code = "from rocstar.sandbox import run; print(run('6 * 7').value)"
    assert base.run("python", "-c", code).stdout == "42\n"


def test_the_guide_of_the_sandbox_alone(base: Environment) -> None:
    """Its blocks run in order and print what stands behind them; those of `sh` install, and are not run."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [language for language, _ in found].count("text") == 4
    for (language, text), (following, shown) in pairwise([*found, ("", "")]):
        if language in {"bash", "python"}:
            shell = ["bash", "-e", "-c"] if language == "bash" else ["python", "-c"]
            ended = base.run(*shell, text)
            assert ended.returncode == 0, ended.stderr
            assert following != "text" or ended.stdout == shown


@pytest.mark.parametrize("verb", ["", "train", "eval", "rollout", "replay", "report", "import-gguf", "sandbox"])
def test_base_dependencies_are_enough_for_help(base: Environment, verb: str) -> None:
    shown = base.run("rocstar", *[verb] * bool(verb), "--help")
    assert shown.returncode == 0 and shown.stdout.startswith("usage: rocstar"), shown.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("train quickstart", "train"),
        ("train quickstart --dry-run", "train"),
        ("sft quickstart", "train"),
        ("eval quickstart", "train"),
        ("rollout quickstart --out new.jsonl", "train"),
        ("replay nothing --step 1", "train"),
        ("import-gguf a b", "gguf"),
        ("sim --workload paper", "sim"),
        ("records run --out lines", "sim"),
        ("sandbox worker --redis redis://127.0.0.1:1", "fabric"),
        ("sandbox serve --port 0 --redis redis://127.0.0.1:1", "fabric"),
    ],
)
def test_a_part_that_is_missing_is_named_in_one_line(base: Environment, command: str, extra: str) -> None:
    ended = base.run("rocstar", *command.split())
    *before, last = ended.stderr.splitlines()
    assert ended.returncode == 2 and "Traceback" not in ended.stderr, ended.stderr
    assert f"[{extra}]'" in last and " needs " in last and "pip install" in last
    assert all(" is left out: " in line for line in before)
    assert extra != "train" or last.startswith(f"rocstar: rocstar {command.split()[0]} needs torch: ")
    assert list(base.work.iterdir()) == []


@pytest.mark.slow
def test_two_steps_of_training_from_the_wheel(shared: Path, tmp_path: Path) -> None:
    """The recipe is found by its name, in any directory, and the tool is the wheel's own sandbox."""
    environment = Environment(shared / "train", tmp_path)
    where = environment.run("python", "-c", "import rocstar.train.cli as cli; print(cli.__file__)")
    assert where.stdout.startswith(str(environment.packages)), where.stderr
    small = ["--run.threads=1", "--sft.steps=2", "--sft.num_demonstrations=64", "--stages.0.steps=2"]
    small += ["--rl.tasks_per_step=1", "--rl.rollouts_per_task=4", "--rl.group_size=2", "--eval.data.size=2"]
    small += ["--eval.samples_per_task=1", "--stages.0.max_response_tokens=48", "--model.scratch.num_layers=1"]
    ended = environment.run("rocstar", "train", "quickstart", "--output-dir=run", *small)
    assert ended.returncode == 0, ended.stderr
    run = environment.work / "run"
    assert {"report.html", "metrics.jsonl", "config.toml"} <= {path.name for path in run.iterdir()}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "reward/mean" in row] == [1, 2]
    report = environment.run("rocstar", "report", "run")
    assert report.returncode == 0, report.stderr
    report = Environment(shared / "base", tmp_path).run("rocstar", "report", "run")
    assert report.returncode == 2 and "[sim]'" in report.stderr, "records are columns, which numpy reads"
    ran = environment.run("rocstar", "sandbox", "run", "-", stdin="import numpy\nprint(numpy.arange(3).sum())")
    assert (ran.returncode, ran.stdout) == (0, "3\n"), ran.stderr


def test_what_is_in_the_wheel(shared: Path) -> None:
    with zipfile.ZipFile(wheel_in(shared)) as file:
        names = file.namelist()
    assert {name.split("/")[0] for name in names if not name.startswith("rocstar-")} == {"rocstar"}
    assert any(name.endswith("recipes/quickstart.toml") for name in names)
    assert any(name.endswith(".jinja") for name in names) and "rocstar/sandbox/_supervisor" in names
    assert not [name for name in names if "/tests/" in name or name.endswith((".pyc", ".cpp", ".h"))]
