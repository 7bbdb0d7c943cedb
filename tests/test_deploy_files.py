"""docs/guide/rocm.md, most of docker/ and cluster/ never ran on what they are for. So that they cannot rot,
each command in them must parse, each path exist, and the Slurm script run with stand-ins."""

import argparse
import contextlib
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from rocstar.sandbox.cli import build_parser
from rocstar.train.cli import dispatch
from rocstar.train.recipe.load import load_recipe

from . import needs
from .patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guide" / "rocm.md"
DOCKERFILES = [ROOT / "docker" / "Dockerfile.rocm", ROOT / "docker" / "Dockerfile.rocm-sglang"]
SBATCH = ROOT / "cluster" / "rocm_8x8.sbatch"
UNIT = ROOT / "cluster" / "rocstar-sandbox.service"
TRY_IMAGE = ROOT / "docker" / "try-image"
IMAGE_RECIPES = "/opt/rocstar/"
"""Where the image has the folder `recipes`."""


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def check_rocstar(arguments: list[str]) -> argparse.Namespace:
    """Parses what follows `rocstar`, recipe and overrides included. Raises SystemExit or ConfigError."""
    if arguments[0] == "sandbox":
        return build_parser().parse_args(arguments[1:])
    options, rest = dispatch.build_parser().parse_known_args(arguments)
    recipe = options.node if arguments[0] == "doctor" else options.recipe
    if recipe or rest:
        load_recipe(recipe.removeprefix(IMAGE_RECIPES), rest)
    return options


def check_torchrun(arguments: list[str]) -> dict[str, str]:
    """torchrun's own options; what it starts is checked as `rocstar train`."""
    at = arguments.index("-m")
    assert arguments[at + 1] == "rocstar.train"
    check_rocstar(["train", *arguments[at + 2 :]])
    options = dict(word.removeprefix("--").split("=", 1) for word in arguments[:at])
    assert options.keys() <= {"nnodes", "nproc-per-node", "role", "node-rank", "master-addr", "master-port"}
    return options


def check(command: list[str]) -> None:
    program, arguments = command[0], command[1:]
    if program == "rocstar":
        check_rocstar(arguments)
    elif program == "torchrun":
        check_torchrun(arguments)
    elif program == "python" and arguments[0] == "-m":
        assert find_spec(arguments[1]), command
    elif program in ("python", "pytest", "sbatch"):
        assert all((ROOT / path).exists() for path in arguments if not path.startswith("-")), command
    elif program == "make":
        target = arguments[0].replace(".venv", "$(VENV)")
        assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command
    elif program == "docker":
        check_docker(arguments)
    else:
        assert program == "pip", command


def check_docker(arguments: list[str]) -> None:
    if arguments[0] == "build":
        (file,) = [path for path in DOCKERFILES if arguments[arguments.index("-f") + 1] == str(path.relative_to(ROOT))]
        for flag, value in itertools.pairwise(arguments):
            assert flag != "--build-arg" or f"ARG {value.split('=')[0]}" in file.read_text()
    elif "rocstar" in arguments:
        check_rocstar(arguments[arguments.index("rocstar") + 1 :])


def commands_of_page() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    inline = re.findall(r"`((?:rocstar|torchrun|python|pytest|make|docker|sbatch) [^`]+)`", text)
    return [*lines, *inline]


@pytest.mark.parametrize("line", commands_of_page())
def test_commands_of_the_page_exist(line: str) -> None:
    check(shlex.split(line))


@pytest.mark.parametrize("path", [PAGE, *DOCKERFILES, SBATCH], ids=lambda path: path.name)
def test_each_says_that_it_never_ran(path: Path) -> None:
    assert "never executed here" in "".join(path.read_text().splitlines(True)[:6]).lower()


# --- the image --------------------------------------------------------------------------------------------


def instructions(path: Path) -> Iterator[tuple[str, str]]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_is_one(path: Path) -> None:
    found = list(instructions(path))
    assert {word for word, _ in found} <= {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "CMD"}
    given = {rest.partition("=")[0]: rest.partition("=")[2] for word, rest in found if word == "ARG"}
    if "PYTHON_IMAGE" in given:
        assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", given["PYTHON_IMAGE"])  # a version that does not move
    else:
        assert given["SGLANG_IMAGE"] == "", "who builds it names the image of his ROCm release"
    users = [rest for word, rest in found if word == "USER"]
    assert users and users[-1] not in ("root", "0")
    for word, rest in found:
        if word == "COPY" and not rest.startswith("--from"):
            assert (ROOT / rest.split()[0]).exists(), rest
        if word == "RUN":
            subprocess.run(["bash", "-n", "-c", rest], check=True)
    [command] = [rest for word, rest in found if word == "CMD"]
    check(re.findall(r'"([^"]+)"', command))
    packages = " ".join(rest for word, rest in found if word == "RUN")
    assert {"libibverbs1", "ibverbs-providers", "rdma-core"} <= set(packages.split()), "RCCL over RDMA"
    assert Path(f"{path}.dockerignore").exists()


def try_image(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", TRY_IMAGE, *map(str, words)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def engine() -> str:
    """The first engine of containers that answers, or else the running test is left out."""
    for name in ("podman", "docker"):
        with contextlib.suppress(OSError):
            if subprocess.run([name, "info"], capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0:
                return name
    needs.ENGINE.skip()


def test_the_sandboxs_image_serves_under_an_engine() -> None:
    """ROCSTAR_ENGINE_OPTIONS: more options of the engine, where its machine needs them."""
    name, archive = engine(), os.environ.get("ROCSTAR_SANDBOX_IMAGE")
    if not archive:
        needs.IMAGE.skip()
    options = shlex.split(os.environ.get("ROCSTAR_ENGINE_OPTIONS", ""))
    done = try_image(archive, "--engine", name, "--", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 * 7 is 42, tier " in done.stdout and "uid" in done.stdout


@pytest.mark.parametrize("words", [["nowhere.tar"], [PAGE, "--engines"], [PAGE, "--engine", "none"]])
def test_a_trial_that_cannot_be_is_one_line_and_exit_2(words: list[object]) -> None:
    done = try_image(*words)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")


def test_a_trial_without_an_engine_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "bash").symlink_to(shutil.which("bash") or "/bin/bash")
    done = try_image(PAGE, PATH=str(tmp_path))
    assert done.returncode == 2 and "apt-get install podman" in done.stderr


# --- the unit ---------------------------------------------------------------------------------------------


def unit_options() -> list[tuple[str, str]]:
    text = UNIT.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def test_the_unit_starts_what_there_is() -> None:
    (command,) = [value for name, value in unit_options() if name == "ExecStart"]
    program, *arguments = shlex.split(command)
    assert program.endswith("/rocstar")
    check_rocstar(arguments)


def test_the_unit_leaves_the_supervisor_what_it_needs() -> None:
    """It mounts, makes namespaces, changes users and gathers heaps in executable memory."""
    options = unit_options()
    held = {word for name, value in options if name == "CapabilityBoundingSet" for word in value.split()}
    assert {"CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_KILL", "CAP_SYS_PTRACE"} <= held
    forbidding = {
        *("RestrictNamespaces", "PrivateUsers", "ProtectControlGroups", "MemoryDenyWriteExecute"),
        *("SystemCallFilter", "RootDirectory", "DynamicUser", "PrivateNetwork"),
    }
    assert forbidding.isdisjoint(name for name, _ in options)


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        needs.Need("systemd-analyze", "apt-get install systemd").skip()
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/rocstar/bin/rocstar", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# --- the job ----------------------------------------------------------------------------------------------

SBATCH_OPTIONS = {
    *("job-name", "nodes", "ntasks-per-node", "gpus-per-node", "exclusive", "mem", "time"),
    *("signal", "requeue", "open-mode", "output"),
}
SRUN_OPTIONS = {*("overlap", "ntasks-per-node", "cpus-per-task", "cpu-bind", "nodes", "gres", "nodelist")}

LOG = 'printf "%s\\n" "$(printf "%q " "$(basename "$0")" "$@")" >>"$CALLS"\n'  # one write, one line
AWAIT_ALL = """if [[ -n ${AWAIT:-} ]]; then
    until (($(grep -c "^rocstar sandbox" "$CALLS") >= AWAIT)) && [[ -s $CALLS.redis ]]; do sleep 0.02; done
fi
"""
STANDINS = {
    # srun: its options, all of the form --name=value, then the command: on the node it names, or on two
    "srun": LOG
    + 'once=""; while [[ $1 == --* ]]; do [[ $1 != --nodelist=* ]] || once=1; shift; done\n'
    + '[[ -z $once ]] || exec "$@"\n"$@" & first=$!\n"$@"; wait $first\n',
    "scontrol": LOG + '[[ $1 != show ]] || printf "node-a\\nnode-b\\n"\n',
    "torchrun": LOG
    + AWAIT_ALL
    + 'if [[ -n ${HOLD:-} ]]; then kill -USR1 "$JOB"; sleep 30; fi\nexit "${ENDS_WITH:-0}"\n',
    "rocstar": LOG
    + """[[ $1 != doctor ]] || exec echo '{"checks": [], "node": {"versions": {}, "ranks": 2}}'\n"""
    + "sleep 30\n",
    "redis-server": LOG + 'cat >"$CALLS.redis"\nsleep 30\n',
}


class Job:
    """Runs the script in a folder of its own; afterwards `calls` are those of the stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "calls"
        (folder / "bin").mkdir()
        for name, text in STANDINS.items():
            path = folder / "bin" / name
            path.write_text(f"#!/bin/bash\n{text}")
            path.chmod(0o755)
        (folder / "bin" / "python").symlink_to(sys.executable)
        for name in ("recipes", "cluster"):
            (folder / name).symlink_to(ROOT / name)

    def run(self, *arguments: str, **environment: str) -> int:
        # The shell tells its pid to the stand-ins: Slurm signals the batch shell alone.
        command = ["bash", "-c", 'export JOB=$$; exec bash "$0" "$@"', str(SBATCH), *arguments]
        env = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            **{"CALLS": str(self._log), "ROCSTAR_VENV": str(self.folder), "SLURM_JOB_ID": "7"},
            **{"SLURM_SUBMIT_DIR": str(self.folder), "SLURM_JOB_NODELIST": "node-[a-b]"},
            **{"SLURM_JOB_NUM_NODES": "8", "SLURM_CPUS_ON_NODE": "192"},
            **environment,
        }
        output = self.folder / "output"
        with (
            output.open("w") as file,
            subprocess.Popen(
                command, env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            ) as process,
        ):
            try:
                code = process.wait(timeout=PATIENCE_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # the stand-ins sleep on
        said = output.read_text()
        assert "command not found" not in said and "unbound" not in said, said
        return code

    def calls(self, program: str) -> list[list[str]]:
        lines = map(shlex.split, self._log.read_text().splitlines())
        return [words[1:] for words in lines if words[0] == program]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_jobs_options_are_sbatchs() -> None:
    options = re.findall(r"^#SBATCH --([a-z-]+)", SBATCH.read_text(), re.MULTILINE)
    assert set(options) <= SBATCH_OPTIONS and {"signal", "requeue", "nodes"} <= set(options)
    body = SBATCH.read_text().split("set -euo pipefail")[0]
    assert all(line.startswith("#") for line in body.splitlines() if line)  # sbatch reads up to a command
    assert SBATCH.read_text().count("\n#SBATCH") == body.count("\n#SBATCH")


def test_the_job_looks_at_every_node_and_starts_one_torchrun_on_each(job: Job) -> None:
    assert job.run("recipes/rstar2_14b.toml", "--rl.lr=2e-6") == 0
    for call in job.calls("rocstar"):
        assert check_rocstar(call).nodes == 2
    starts = [check_torchrun(call) for call in job.calls("torchrun")]
    assert sorted(start.pop("node-rank") for start in starts) == ["0", "1"]
    told = {"nnodes": "2", "nproc-per-node": "2", "master-addr": "node-a", "master-port": "29500"}
    assert starts == [told, told], "a rank for each GPU that the doctor says is the learner's"
    for call in job.calls("torchrun"):
        assert call[-3:] == ["--output-dir", "runs/rstar2_14b", "--rl.lr=2e-6"]
    nodes = []
    for call in job.calls("srun"):
        options = dict(word.removeprefix("--").split("=", 1) for word in call if re.match("--[a-z-]+=", word))
        own = {name: value for name, value in options.items() if name in SRUN_OPTIONS}
        assert {"cpus-per-task", "nodes"} <= own.keys() and "--overlap" in call
        nodes.append(own["nodelist"])
    assert sorted(nodes) == ["node-a", "node-a", "node-b", "node-b"]
    assert len(job.calls("rocstar")) == 2 and not job.calls("redis-server")


def test_the_last_nodes_of_a_job_may_only_serve(job: Job) -> None:
    assert job.run("recipes/rstar2_14b.toml", ROCSTAR_SERVING="1") == 0
    starts = {start["node-rank"]: start for start in map(check_torchrun, job.calls("torchrun"))}
    assert "role" not in starts["0"] and starts["0"]["nproc-per-node"] == "2"
    assert (starts["1"]["role"], starts["1"]["nproc-per-node"]) == ("server", "1")
    before = len(job.calls("torchrun"))
    for wrong in ("2", "-1", "all"):
        assert job.run("recipes/rstar2_14b.toml", ROCSTAR_SERVING=wrong) == 2, "nobody would learn"
    assert len(job.calls("torchrun")) == before


def test_the_job_ends_as_the_training_does(job: Job) -> None:
    assert job.run("recipes/rstar2_14b.toml", ENDS_WITH="3", ROCSTAR_RESTARTS="0") == 1
    before = len(job.calls("torchrun"))  # the second node may be ended before it has begun
    assert job.run() != 0 and len(job.calls("torchrun")) == before in (1, 2)  # without a recipe nothing starts


def test_a_job_that_was_queued_again_resumes(job: Job) -> None:
    run_dir = job.folder / "kept"
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").touch()
    assert job.run("recipes/rstar2_14b.toml", ROCSTAR_RUN_DIR=str(run_dir)) == 0
    for call in job.calls("torchrun"):
        check_torchrun(call)
        assert call[-3:] == ["--output-dir", str(run_dir), "--resume"]


def test_near_its_end_the_job_queues_itself_again(job: Job) -> None:
    assert job.run("recipes/rstar2_14b.toml", HOLD="1") == 0
    assert ["requeue", "7"] in job.calls("scontrol")


def test_the_fabric_of_a_job(job: Job) -> None:
    assert job.run("recipes/rstar2_14b.toml", ROCSTAR_FABRIC="1", ROCSTAR_MAX_LIVE="9", AWAIT="3") == 0
    verbs = {call[1]: check_rocstar(call) for call in job.calls("rocstar") if call[0] == "sandbox"}
    assert verbs.keys() == {"worker", "serve"} and verbs["worker"].max_live == 9
    settings = (job.folder / "calls.redis").read_text()
    password = re.search(r"^requirepass (\S{32,})$", settings, re.MULTILINE)
    assert password and "port 6479" in settings and 'save ""' in settings
    for program in STANDINS:
        assert not any(password[1] in word for call in job.calls(program) for word in call)
