"""A node that lacks one thing is told that thing, with its fix; the worst decides the exit code."""

import dataclasses
import json
import math
import socket
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.cli import main
from rocstar.train.plan import node_facts
from rocstar.train.plan.node_facts import (
    GIB,
    GpuFacts,
    NodeFacts,
    RdmaPort,
    check_node,
    exit_code,
    is_free,
    rdma_ports,
)

GPU = GpuFacts(name="MI300X", free=190 * GIB, total=192 * GIB)
GOOD = NodeFacts(
    host="gpu-a",
    time_unix=0.0,
    versions={"rocstar": "0.1", "commit": "", "python": "3.11.7", "torch": "2.13.0+rocm7.0", "kernel": "6.1"},
    gpus=[GPU] * 8,
    rdma=[RdmaPort(device="mlx5_0", state="4: ACTIVE", rate="400 Gb/sec (4X NDR)")],
    has_verbs=True,
    clock_error_s=0.01,
    memory_available=1 << 40,
    shared_memory=64 * GIB,
    nofile=1 << 20,
    memlock=-1,
    scratch="/tmp",
    scratch_free=100 * GIB,
    isolation="B",
    isolation_why="a filter",
)


def test_a_node_that_has_everything_is_fit() -> None:
    checks = check_node(GOOD, nodes=8, gpus=8)
    assert exit_code(checks) == 0 and not any(one.fix for one in checks)
    assert {one.name for one in checks} == {
        *("gpus", "gpu memory", "rdma", "clock", "ports", "sandbox", "scratch", "shared memory"),
        *("descriptors", "pinned memory", "versions"),
    }


@pytest.mark.parametrize(
    ("change", "name", "code", "words"),
    [
        ({"gpus": [GPU] * 7}, "gpus", 2, "torch sees 7, the recipe names 8"),
        ({"gpus": [GPU] * 7 + [dataclasses.replace(GPU, name="MI250")]}, "gpus", 1, "MI250 and MI300X"),
        ({"gpus": [dataclasses.replace(GPU, free=GIB)] + [GPU] * 7}, "gpu memory", 2, "in use on GPU 0"),
        ({"rdma": []}, "rdma", 1, "0 of 0 ports active"),
        ({"rdma": [RdmaPort(device="m", state="1: DOWN", rate="")]}, "rdma", 1, "0 of 1 ports"),
        ({"has_verbs": False}, "rdma", 1, "libibverbs cannot be loaded"),
        ({"clock_error_s": math.inf}, "clock", 1, "nobody sets it"),
        ({"clock_error_s": 2.5}, "clock", 1, "off by 2.500 s"),
        ({"busy_ports": [29500]}, "ports", 2, "in use: 29500"),
        ({"isolation": None, "isolation_why": "no seccomp"}, "sandbox", 2, "no seccomp"),
        ({"scratch_free": 1 << 20}, "scratch", 1, "0.0 GiB free in /tmp"),
        ({"shared_memory": 64 << 20}, "shared memory", 1, "0.1 GiB free in /dev/shm"),
        ({"nofile": 1024}, "descriptors", 1, "1,024 a process"),
        ({"memlock": 8 << 20}, "pinned memory", 2, "0.01 GiB"),
        ({"versions": GOOD.versions | {"torch": "2.9.1"}}, "versions", 2, "torch 2.9.1"),
    ],
)
def test_what_is_missing_is_told_with_its_fix(change: dict[str, Any], name: str, code: int, words: str) -> None:
    checks = check_node(dataclasses.replace(GOOD, **change), nodes=8, gpus=8)
    (wrong,) = [one for one in checks if one.fix]
    assert wrong.name == name and words in wrong.found and exit_code(checks) == code


def test_one_node_alone_needs_no_network_and_no_common_clock() -> None:
    alone = dataclasses.replace(GOOD, rdma=[], has_verbs=False, clock_error_s=math.inf, memlock=1 << 20)
    assert exit_code(check_node(alone, gpus=8)) == 0
    on_cpus = dataclasses.replace(alone, gpus=[])
    assert exit_code(check_node(on_cpus)) == 0


def test_what_the_recipe_lacks_is_among_it() -> None:
    checks = check_node(GOOD, recipe_problems=["engine.kind = 'sglang': no sglang; install it"])
    assert exit_code(checks) == 2
    assert (checks[-1].found, checks[-1].fix) == ("engine.kind = 'sglang': no sglang", "install it")


def test_ports_of_network_cards_are_read_from_the_kernel(tmp_path: Path) -> None:
    port = tmp_path / "bnxt_re0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    assert list(rdma_ports(tmp_path)) == [RdmaPort(device="bnxt_re0", state="4: ACTIVE", rate="")]
    assert not list(rdma_ports(tmp_path / "nowhere"))


def test_a_port_where_somebody_listens_is_not_free() -> None:
    with socket.socket() as listening:
        listening.bind(("", 0))
        listening.listen(1)
        port = listening.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_the_command_says_all_of_it_and_what_a_launcher_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_facts, "gather_node", lambda ports: dataclasses.replace(GOOD, busy_ports=ports))
    monkeypatch.setenv("ROCSTAR_SGLANG_PYTHON", str(tmp_path / "nowhere"))
    arguments = ["doctor", "--node", "rstar2_14b", "--nodes", "8", f"--output-dir={tmp_path}", "--port", "7"]
    assert main([*arguments, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    wrong = {check["name"]: check for check in told["checks"] if check["fitness"] == "problem"}
    assert wrong.keys() == {"ports", "recipe"} and not told["fit"]
    assert told["node"]["ranks"] == 3, "servers have the other GPUs"
    assert main(["doctor", "--node", "--port=7"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "node gpu-a: NOT fit" and sum(line.split()[0] == "fix" for line in lines[1:]) == 1


@pytest.mark.parametrize(
    ("gpus", "more", "wrong"),
    [
        (4, [], "torch sees 4, the recipe names 8"),
        (4, ["--serves"], ""),
        (1, ["--serves", "--engine.replicas=[[0,1]]"], "a node that only serves has 1"),
    ],
)
def test_a_node_that_only_serves_needs_other_gpus(
    gpus: int,
    more: list[str],
    wrong: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Of the recipe's servers it has as many as find room."""
    monkeypatch.setattr(node_facts, "gather_node", lambda ports: dataclasses.replace(GOOD, gpus=[GPU] * gpus))
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setenv("ROCSTAR_SGLANG_PYTHON", str(tmp_path / "nowhere"))
    main(["doctor", "--node", "rstar2_14b", "--nodes=2", f"--output-dir={tmp_path}", "--json", *more])
    told = json.loads(capsys.readouterr().out)
    problems = "; ".join(one["found"] for one in told["checks"] if one["fitness"] == "problem")
    assert wrong in problems and ("GPU" in problems) == bool(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "or --node [RECIPE] to check this node"),
        (["--node", "nowhere.toml"], "'nowhere.toml' does not exist"),
        (["--node", "--rl.lr=1"], "name one: rocstar doctor --node RECIPE"),
        (["--node", "--nodes=0"], "'0' is not a number of nodes"),
        (["--node", "--port=70000"], "'70000' is not a port"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_facts, "gather_node", lambda ports: GOOD)
    try:
        code = main(["doctor", *arguments])
    except SystemExit as ended:  # argparse's own
        code = int(str(ended.code))
    assert code == 2 and message in capsys.readouterr().err
