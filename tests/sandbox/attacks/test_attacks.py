"""The attack suite, as the three users that a pool can be started by, and with single layers left out.

    here      this Python, by whoever runs the tests
    slots     root with a Python that all may read: every program has a user of its own
    ordinary  a user without any rights (uid 65534)
    tier A    that user without namespaces, as in a default container

The programs are in sandbox/attacks: they ship with the package, for `rocstar sandbox doctor --attack`.
`programs` is a link to them. Root runs "slots", the strongest, and others "tier A"; ROCSTAR_ALL_ATTACKS=1
adds the rest. Each configuration runs once for all test processes, in a process of its own: it reaps what
the attacks leave, and its environment holds the bait.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocstar.sandbox.attacks import host, run
from rocstar.sandbox.attacks.catalogue import GROUPS

from ... import needs
from ...patience import PATIENCE_S
from .world_readable import world_readable_python

pytestmark = pytest.mark.slow

NOBODY = 65534

LONG = needs.time_for("ROCSTAR_ALL_ATTACKS").unless(needs.is_set("ROCSTAR_ALL_ATTACKS"))
EXTRA = [pytest.param(name, marks=LONG) for name in ("here", "ordinary")]
"""Each takes a minute or two."""
TIER_A = pytest.param("tier A", marks=LONG if os.geteuid() == 0 else ())

TIME_LIMIT_S = 900
"""The suite takes a minute; a hang must still end."""

Verdicts = list[dict[str, Any]]

MANY_AT_ONCE = f"""
import asyncio
from rocstar.sandbox.attacks.host import Host
from rocstar.sandbox.attacks.run import open_pool, ready_runner, find_leftovers

async def main():
    with Host() as host:
        async with open_pool(["stdlib"]) as pool:
            await ready_runner(pool, host, ["stdlib"], None)
            for session in await asyncio.gather(*(pool.open_session() for _ in range(20))):
                await session.close()
            print(await find_leftovers(host, {PATIENCE_S}))

asyncio.run(main())
"""


def test_a_file_of_another_run_is_named_before_the_first_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = tmp_path / "rocstar-breach-x"
    left.touch()
    monkeypatch.setattr(host, "PUBLIC_FOLDERS", (str(tmp_path),))
    monkeypatch.setenv(host.BAIT_VARIABLE, "swordfish")
    for arguments in ([], ["--breaches"]):
        assert run.main(arguments) == 2
        told = capsys.readouterr()
        assert told.out == "" and told.err == (
            f"rocstar sandbox: {left} is a leftover of another run of the attacks. Remove it first.\n"
        )


@pytest.fixture(scope="session")
def public_python() -> Iterator[Path | None]:
    with world_readable_python() as python:
        yield python


def suite(python: Path, *arguments: str, user: int | None = None) -> Verdicts:
    done = subprocess.run(
        [python, "-P", "-m", "rocstar.sandbox.attacks.run", "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
        cwd="/",
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        user=user,
        group=user,
        extra_groups=[] if user is not None else None,
    )
    assert done.stdout, f"the suite gave no verdict: {done.stderr[-2000:]}"
    verdicts: Verdicts = json.loads(done.stdout)
    return verdicts


@pytest.fixture(scope="session")
def verdicts_of(public_python: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Verdicts]:
    """Verdicts by configuration. Whoever asks first runs it; other test processes wait for what it wrote."""
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent

    def verdicts(configuration: str, *arguments: str) -> Verdicts:
        path = folder / f"attacks {configuration}{' '.join(arguments)}.json"
        with open(path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not path.stat().st_size:
                file.write(json.dumps(run_suite(configuration, public_python, *arguments)))
                file.flush()
            found: Verdicts = json.loads(path.read_text())
        return found

    return verdicts


def run_suite(configuration: str, python: Path | None, *arguments: str) -> Verdicts:
    if configuration == "tier A":
        arguments = (*arguments, "--without", "namespaces", "cgroup")
    if configuration == "here" or (configuration == "tier A" and os.geteuid() != 0):
        return suite(Path(sys.executable), *arguments)
    if os.geteuid() != 0:
        needs.ROOT.skip()  # to become other users; as an ordinary user `here` is the test
    if python is None:
        needs.PUBLIC_PYTHON.skip()
    return suite(python, *arguments, user=None if configuration == "slots" else NOBODY)


def failures(verdicts: Verdicts) -> list[str]:
    return [
        f"{verdict['name']} {verdict['variant']}: {problem}" for verdict in verdicts for problem in verdict["problems"]
    ]


@pytest.mark.privileged
@pytest.mark.parametrize("configuration", ["slots", *EXTRA, TIER_A])
@pytest.mark.parametrize("group", GROUPS)
def test_every_program_comes_to_what_it_must(
    configuration: str, group: str, verdicts_of: Callable[..., Verdicts]
) -> None:
    members = [one for one in verdicts_of(configuration) if one["group"] == group]
    assert members
    assert failures(members) == []


@needs.PLANTED.unless(needs.plants_all())
@pytest.mark.privileged
@pytest.mark.parametrize("configuration", ["slots", *EXTRA])
def test_an_attack_gets_through_without_the_layer_that_holds_it(
    configuration: str, verdicts_of: Callable[..., Verdicts]
) -> None:
    verdicts = verdicts_of(configuration, "--breaches")
    assert len([one for one in verdicts if not one["skipped"]]) >= 50
    assert failures(verdicts) == []


def test_places_that_a_program_used_beside_others_are_no_leftovers() -> None:
    """Where calls of the warm-up came one after the other, an attack's second program "left" descriptors."""
    command = [sys.executable, "-P", "-c", MANY_AT_ONCE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
