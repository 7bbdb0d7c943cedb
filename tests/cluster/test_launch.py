"""The launcher on stand-ins of rocstar and torchrun: what is looked at first, who is started where, and when
all are started anew."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "cluster" / "launch.py"
ARGUMENTS = ["r.toml", "--hosts=a=10.0.0.1,b", "--shell=bash -c {command}", "--output-dir=run", "--rl.lr=1e-6"]
DEADLINE_S = 300.0
DOCTOR = """#!/bin/bash
printf '%s\\n' "$(printf '%q ' rocstar "$@")" >>"$CALLS"  # one write
echo "$DOCTOR_SAYS"
"""
TORCHRUN = """#!/bin/bash
printf '%s\\n' "$(printf '%q ' torchrun "$@")" >>"$CALLS"  # one write
mkdir -p run; touch run/metrics.jsonl
start=$(grep -c -- '^torchrun.*--node-rank=0' "$CALLS")
whole=run/checkpoints/step_$start/COMPLETE
if ((start >= MISTAKES)) && [[ $* == *--node-rank=0* ]]; then
    until (($(grep -c -- '^torchrun' "$CALLS") % 2 == 0)); do sleep 0.01; done
    if ((start == SAVES)); then mkdir -p "${whole%/*}"; touch "$whole"; fi
    [[ -n $LATE ]] || { touch "$ROCSTAR_MISTAKE"; exit 1; }
    trap 'touch "$ROCSTAR_MISTAKE"; exit 1' TERM
    touch waits
    while :; do sleep 0.01; done
elif ((start >= MISTAKES)); then
    [[ -n $LATE ]] || exec sleep 1000
    until [[ -e waits ]]; do sleep 0.01; done
    exit 1
fi
if [[ $* == *--node-rank=1* ]]; then
    until (($(grep -c -- '^torchrun' "$CALLS") % 2 == 0)); do sleep 0.01; done
    start=$(grep -c -- '^torchrun.*--node-rank=0' "$CALLS")
    whole=run/checkpoints/step_$start/COMPLETE
    if ((start == SAVES)); then mkdir -p "${whole%/*}"; touch "$whole"; fi
    ((start > FAILS)) || exit 5
elif ((start <= FAILS)); then
    exec sleep 1000
fi
"""


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("launch", LAUNCH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "launch", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)
    return module


def says(**more: object) -> str:
    return json.dumps({"checks": [], "node": {"versions": {}, "ranks": 2}} | more)


class Site:
    """Two nodes that are this machine; `calls` returns the calls of the replaced programs."""

    def __init__(
        self, folder: Path, launch: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self._log, self._main, self._capfd = folder / "calls", launch.main, capfd
        (folder / "bin").mkdir()
        for name, text in (("rocstar", DOCTOR), ("torchrun", TORCHRUN)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (folder / "bin" / "python").symlink_to(sys.executable)
        monkeypatch.setattr(sys, "executable", str(folder / "bin" / "python"))
        monkeypatch.chdir(folder)
        variables = {"DOCTOR_SAYS": says(), "CALLS": str(self._log)}
        variables |= {"FAILS": "0", "SAVES": "0", "MISTAKES": "99", "LATE": ""}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        self._setenv = monkeypatch.setenv

    def launch(self, *options: str, arguments: Sequence[str] = ARGUMENTS, **variables: object) -> int:
        """Run the launcher; each variable directs the replaced programs."""
        for name, value in variables.items():
            self._setenv(name, str(value))
        code: int = self._main([*arguments, *options])
        return code

    def messages(self) -> str:
        return self._capfd.readouterr().err

    def calls(self, program: str) -> list[list[str]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [words[1:] for words in map(shlex.split, lines) if words[0] == program]

    def starts(self, node: int) -> list[list[str]]:
        return [call for call in self.calls("torchrun") if f"--node-rank={node}" in call]


@pytest.fixture
def site(
    tmp_path: Path, launch: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Site:
    return Site(tmp_path, launch, monkeypatch, capfd)


def test_every_node_is_looked_at_then_has_its_torchrun(site: Site) -> None:
    assert site.launch() == 0
    look = ["doctor", "--node", "r.toml", "--json", "--nodes", "2", "--port", "29500", "--output-dir", "run"]
    assert site.calls("rocstar") == [[*look, "--rl.lr=1e-6"]] * 2
    for node in range(2):
        (start,) = site.starts(node)
        assert start == [
            *("--nnodes=2", "--nproc-per-node=2", f"--node-rank={node}", "--master-addr=10.0.0.1"),
            *("--master-port=29500", "-m", "rocstar.train", "r.toml", "--output-dir", "run", "--rl.lr=1e-6"),
        ]


def test_a_node_gets_settings_of_its_gpus_and_no_secret_of_others(launch: ModuleType) -> None:
    settings = {
        *("ROCR_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "PYTORCH_TUNABLEOP_ENABLED", "TRITON_CACHE_DIR"),
        *("AITER_JIT_DIR", "HIPBLASLT_TUNING_FILE", "MIOPEN_USER_DB_PATH", "GPU_MAX_HW_QUEUES", "AMD_LOG_LEVEL"),
        *("NCCL_MIN_NCHANNELS", "HSA_NO_SCRATCH_RECLAIM", "HIP_FORCE_DEV_KERNARG", "SGLANG_USE_AITER"),
        *("TORCH_BLAS_PREFER_HIPBLASLT", "HF_HOME", "SGLANG_MAX_NEW_TOKENS", "ROCSTAR_REDIS_URL"),
        "ROCSTAR_JUDGE_KEY",
    }
    kept_here = {"HF_TOKEN", "AMD_API_KEY", "SGLANG_api_key", "PYTORCH_SECRET_X", "HIP_PASSWORD", "WANDB_API_KEY"}
    others = {"PATH", "HOME", "AWS_REGION", "MY_ROCR_X"}
    assert set(launch.sent(dict.fromkeys(settings | kept_here | others, "x"))) == settings


def test_the_variables_of_the_page_on_rocm_go_to_every_node(launch: ModuleType) -> None:
    page = (ROOT / "docs" / "guide" / "rocm.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([A-Z][A-Z_]+)=", page)) | set(re.findall(r"`([A-Z]+_[A-Z_]+)`", page))
    assert len(names) > 15 and launch.sent(dict.fromkeys(names, "1")).keys() == names


def test_when_a_node_fails_the_others_are_ended_and_all_are_started_again(site: Site) -> None:
    assert site.launch("--ranks=4", "--no-look", FAILS=2) == 0
    for node in range(2):
        assert ["--resume" in call for call in site.starts(node)] == [False, True, True]
    assert "b ended with exit code 5; restart 2 of 3" in site.messages()


@pytest.mark.parametrize(("saves", "starts"), [(0, 3), (2, 4)])
def test_restarts_without_a_new_checkpoint_are_bounded(site: Site, saves: int, starts: int) -> None:
    """A run that saved a checkpoint before it failed resets the count."""
    assert site.launch("--ranks=1", "--no-look", "--restarts=2", FAILS=99, SAVES=saves) == 1
    assert len(site.starts(0)) == len(site.starts(1)) == starts
    assert "2 restarts brought no new checkpoint" in site.messages()


@pytest.mark.parametrize("late", ["", "1"])
def test_what_no_start_can_mend_is_not_started_again(site: Site, late: str) -> None:
    """torchrun's own exit code is 1, and another node may end before the one that knows."""
    assert site.launch("--ranks=1", "--no-look", MISTAKES=0, LATE=late) == 2
    assert len(site.starts(0)) == len(site.starts(1)) == 1
    messages = site.messages()
    assert "a: recipe, options, paths or disk are not usable" in messages
    assert "nothing is started again" in messages


@pytest.mark.parametrize(("fails", "saves", "mistakes"), [(1, 0, 2), (0, 1, 1)])
def test_what_worked_once_is_no_mistake(site: Site, fails: int, saves: int, mistakes: int) -> None:
    """It was started before, or has saved a checkpoint."""
    options = ("--ranks=1", "--no-look", "--restarts=2")
    assert site.launch(*options, FAILS=fails, SAVES=saves, MISTAKES=mistakes) == 1
    assert len(site.starts(0)) == 3 and "not usable, as said above; restart 2 of 2" in site.messages()


def test_nodes_that_only_serve_come_last_with_one_process_each(site: Site) -> None:
    assert site.launch(arguments=[ARGUMENTS[0], "--hosts=a", "--serving-hosts=b", *ARGUMENTS[2:]]) == 0
    (learns,), (serves,) = site.starts(0), site.starts(1)
    assert learns[:4] == ["--nnodes=2", "--nproc-per-node=2", "--node-rank=0", "--master-addr=a"]
    assert serves[:4] == ["--nnodes=2", "--nproc-per-node=1", "--role=server", "--node-rank=1"]
    assert serves[4:] == learns[3:], "the same run"
    looks = site.calls("rocstar")
    assert sorted("--serves" in look for look in looks) == [False, True], "and are looked at as such"


def test_a_node_that_is_not_fit_starts_nothing(site: Site) -> None:
    check = {"name": "ports", "fitness": "problem", "found": "in use: 29500", "fix": "end it"}
    thin = {"name": "rdma", "fitness": "warning", "found": "0 of 0", "fix": "load it"}
    assert site.launch(DOCTOR_SAYS=says(checks=[check, thin])) == 2 and not site.calls("torchrun")
    messages = site.messages()
    assert "a: ports: in use: 29500; end it" in messages and "warning: b: rdma: 0 of 0; load it" in messages


def test_a_node_that_cannot_be_reached_is_named_with_what_to_try(site: Site) -> None:
    arguments = [*ARGUMENTS[:2], "--shell=false {host} {command}", "--look-only"]
    assert site.launch(arguments=arguments) == 2
    messages = site.messages()
    assert "b: no answer of `rocstar doctor`" in messages and "does `false b true` work?" in messages


def looked(launch: ModuleType, name: str, ranks: int, torch: str) -> object:
    node = {"versions": {"torch": torch}, "ranks": ranks}
    return launch.Looked(host=launch.Host.parse(name), offset_s=0.0, checks=[], node=node)


def test_nodes_must_be_alike(launch: ModuleType) -> None:
    seen = [looked(launch, "a", 8, "2.13"), looked(launch, "b", 7, "2.12")]
    (versions,), (ranks,) = launch.unlike(seen), launch.unequal(seen, None)
    assert versions == "torch differs: a 2.13, b 2.12; install the same on every node"
    assert ranks.startswith("GPUs that learn differ: a 8, b 7")
    assert not launch.unequal(seen, 4) and not launch.unequal(seen[:1], None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["r.toml", "--hosts=a", "--restart=3"], "'--restart=3' is no option"),
        (["r.toml", "--hosts=,"], "names no node"),
        (["r.toml", "--hosts=a,b", "--serving-hosts=b"], "b is one of --hosts"),
        (["r.toml", "--hosts=a", "--no-look"], "give --ranks"),
        (["r.toml", "--hosts=a", "--shell=ssh {host}"], "has no {command}"),
        (["r.toml", "--hosts=a", "--restarts=-1"], "0 or more"),
    ],
)
def test_a_mistake_is_one_line(
    launch: ModuleType, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        launch.main(arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_signal_ends_every_node(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS", "99")
    torchrun = Path("bin/torchrun")
    torchrun.write_text('#!/bin/bash\necho $$ "$(ps -o ppid= $$)" >>"$CALLS.pids"\nexec sleep 1000\n')
    os.mkfifo("calls.pids")
    command = [sys.executable, str(LAUNCH), *ARGUMENTS, "--ranks=1", "--no-look"]
    with subprocess.Popen(command) as process:
        pids = []
        while len(pids) < 4:
            pids += [int(word) for word in Path("calls.pids").read_text().split()]
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 143
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
