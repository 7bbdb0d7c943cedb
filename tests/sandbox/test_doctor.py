"""The doctor: what it says of this machine, and what it would say of others."""

import json
import os
import resource
from dataclasses import replace
from typing import Any

import pytest

from rocstar.sandbox import cli
from rocstar.sandbox.doctor import facts
from rocstar.sandbox.doctor import report as doctor_report
from rocstar.sandbox.doctor.layers import PROTECTIONS, Layer, MachineLimit, TrialPool
from rocstar.sandbox.doctor.report import report_of

FACTS: dict[str, Any] = {
    "kernel": "6.8.0-45-generic",
    "machine": "x86_64",
    "python": "3.12.3",
    "uid": 1000,
    "seccomp": True,
    "user_notif": True,
    "landlock_abi": 4,
    "user_namespaces": True,
    "apparmor_restricts": False,
    "can_change_uid": False,
    "lacks": [],
    "python_hidden": "",
    "cgroup": "v2",
    "container": False,
    "pid_max": 4_194_304,
    "pids": 0,
    "nproc": resource.RLIM_INFINITY,
    "nofile": 65_536,
    "memory_bytes": 16 << 30,
    "huge_pages": "madvise",
    "scratch_parent": "/tmp",
    "flavours": ("stdlib",),
    "flavours_left_out": [],
    "working_copies": [],
    "scratch_free_bytes": 100 << 30,
}
BASE = frozenset(("nnp", "rlimits", "seccomp", "landlock"))
TIER_A = TrialPool(isolation=BASE, tier="A", scratch=True)
TIER_B = TrialPool(isolation=BASE | {"uid", "namespaces", "cgroup"}, tier="B", scratch=True)


def layers(started: TrialPool, **changes: Any) -> dict[str, Layer]:
    return {layer.name: layer for layer in report_of(started, {**FACTS, **changes}).layers}


def limits(**changes: Any) -> dict[str, MachineLimit]:
    return {limit.name: limit for limit in report_of(TIER_A, {**FACTS, **changes}).limits}


def test_it_tells_what_holds_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tier"] in ("A", "B")
    found = {layer["name"]: layer for layer in report["layers"]}
    assert found["seccomp"]["active"] and found["rlimits"]["active"]
    assert (report["tier"] == "B") == found["namespaces"]["active"]
    if "ROCSTAR_SUPERVISOR" not in os.environ:
        assert all(layer["active"] for name, layer in found.items() if name.startswith("supervisor "))
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"tier {report['tier']}: ") and "active   seccomp" in shown


CONFINED = {"CapPrm": "000000000188002b", "NoNewPrivs": "1", "Seccomp": "2"}


@pytest.mark.parametrize(
    ("name", "started"),
    [
        ("supervisor build", replace(TIER_B, built=frozenset(("fortify", "pie")), status=CONFINED)),
        ("supervisor caps", replace(TIER_B, status=CONFINED | {"CapPrm": "000001ffffffffff"})),
        ("supervisor nnp", replace(TIER_B, status=CONFINED | {"NoNewPrivs": "0"})),
        ("supervisor filter", replace(TIER_B, status=CONFINED | {"Seccomp": "0"})),
        ("users", replace(TIER_B, isolation=TIER_B.isolation | {"shared_users"})),
    ],
)
def test_it_tells_what_the_supervisor_lacks(name: str, started: TrialPool) -> None:
    whole = replace(TIER_B, built=frozenset(PROTECTIONS), status=CONFINED)
    assert layers(whole)[name].active and not layers(started)[name].active
    assert "users" not in layers(TIER_A)  # programs have none of their own


@pytest.mark.parametrize("started", [TIER_A, TIER_B, TrialPool(error="no filter")])
def test_a_layer_has_cost_reason_and_fix_exactly_when_it_is_absent(started: TrialPool) -> None:
    for layer in layers(started, seccomp=not started.error, user_notif=not started.error).values():
        told = (bool(layer.cost), bool(layer.reason), bool(layer.fix))
        assert told == ((not layer.active,) * 3), layer


def test_without_a_pool_it_fails_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of(TrialPool(error="this kernel offers no seccomp filter"), {**FACTS, "seccomp": False})
    monkeypatch.setattr(doctor_report, "examine", lambda: report)
    assert cli.main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "tier none: this kernel offers no seccomp filter" in shown
    assert "MISSING  seccomp" in shown and "fix: use a kernel" in shown


ROOT = {"uid": 0, "can_change_uid": True}


@pytest.mark.parametrize(
    ("name", "changes", "reason", "fix"),
    [
        ("uid", {}, "user 1000 cannot become another", "start as root"),
        ("uid", ROOT | {"python_hidden": "/root/x"}, "other users cannot read /root/x", "world-readable place"),
        ("uid", {"uid": 0}, "this root may not change users, or has none to change to", "SETUID"),
        ("uid", ROOT | {"lacks": ["CHOWN"]}, "this root lacks CHOWN", "`--cap-add CHOWN`"),
        ("namespaces", {"apparmor_restricts": True}, "AppArmor", "apparmor_restrict_unprivileged_userns"),
        ("namespaces", {"container": True, "user_namespaces": False}, "filter", "seccomp=unconfined"),
        ("namespaces", {"container": True, "uid": 0}, "mounts", "--security-opt apparmor=unconfined"),
        ("namespaces", {"user_namespaces": False}, "may not make", "max_user_namespaces"),
        ("namespaces", {}, "mounts", "start as root"),
        ("cgroup", {"container": True}, "not its own", "--memory"),
        ("cgroup", {}, "no group can be made here", "Delegate"),
    ],
)
def test_it_tells_why_a_layer_is_absent(name: str, changes: dict[str, Any], reason: str, fix: str) -> None:
    absent = layers(TIER_A, **changes)[name]
    assert not absent.active and reason in absent.reason and fix in absent.fix
    assert layers(TIER_B, **changes)[name].fix == ""


@pytest.mark.parametrize("variable", ["container", "KUBERNETES_SERVICE_HOST"])
def test_a_container_is_one_without_its_engines_files(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts.os.path, "exists", lambda path: False)
    for name in ("container", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert not facts.in_container()
    monkeypatch.setenv(variable, "podman")
    assert facts.in_container()


def test_landlock_tells_what_its_version_can_do() -> None:
    assert "signals" in layers(TIER_A, landlock_abi=6)["landlock"].detail
    assert "signals" not in layers(TIER_A, landlock_abi=5)["landlock"].detail
    without = TrialPool(isolation=frozenset(("nnp", "rlimits", "seccomp", "uid")), tier="A")
    absent = layers(without, landlock_abi=0)["landlock"]
    assert not absent.active and "lsm=landlock" in absent.fix


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("pid_max", {"pid_max": 32_768}),
        ("pids", {"pids": 2048}),
        ("nproc", {"nproc": 1000}),
        ("nofile", {"nofile": 1024}),
        ("huge pages", {"huge_pages": "never"}),
        ("kernel", {"kernel": "5.15.0-100-generic"}),
        ("scratch", {"scratch_free_bytes": 1 << 20}),
        ("packages", {"working_copies": ["/home/ann/tables/src"]}),
    ],
)
def test_a_limit_that_is_too_small_has_a_note_and_a_fix(name: str, changes: dict[str, Any]) -> None:
    assert name not in limits() or limits()[name].note == limits()[name].fix == ""
    small = limits(**changes)[name]
    assert small.note and small.fix


def test_a_working_copy_that_programs_cannot_read_is_named() -> None:
    note = limits(working_copies=["/home/ann/tables/src", "/srv/fonts"])["packages"].note
    assert "/home/ann/tables/src, /srv/fonts" in note and "no data file" in note


def test_probing_changes_nothing_here() -> None:
    def change() -> None:
        raise PermissionError

    assert facts.in_child(lambda: None) and not facts.in_child(change)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    facts.gather()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_kernel_versions_and_choices_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [bool(limits(kernel=kernel)["kernel"].note) for kernel in ("6.18.44-custom", "5.4")] == [False, True]
    read = facts.read
    for text, selected in (("always [madvise] never", "madvise"), ("", "")):
        monkeypatch.setattr(facts, "read", lambda path, text=text: text if "hugepage" in path else read(path))
        assert facts.gather()["huge_pages"] == selected


def test_attack_runs_the_suite_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str]) -> None:
            commands.append(command)

        def __enter__(self) -> "Process":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def wait(self) -> int:
            return 1

    monkeypatch.setattr(cli.subprocess, "Popen", Process)
    assert cli.main(["doctor", "--attack", "--json"]) == 1
    assert commands[0][1:] == ["-P", "-m", "rocstar.sandbox.attacks.run", "--json"]
