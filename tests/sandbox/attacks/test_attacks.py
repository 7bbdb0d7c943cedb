"""The attack suite, as the three users that a pool can be started by, and with single layers left out.

    here      this Python, by whoever runs the tests
    slots     root with a Python that all may read: every program has a user of its own
    ordinary  a user without any rights (uid 65534)
    tier A    that user without namespaces, as in a default container

The programs are in sandbox/attacks: they ship with the package, for `rocstar sandbox doctor --attack`.
`programs` is a link to them. "slots" and "tier A" always run; ROCSTAR_ALL_ATTACKS=1 adds the others. Each
configuration runs once, in a process of its own: it reaps what the attacks leave, and its environment holds
the bait.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocstar.sandbox.attacks.catalogue import GROUPS

from ... import needs
from .world_readable import world_readable_python

pytestmark = pytest.mark.slow

NOBODY = 65534

EXTRA = ["here", "ordinary"] if os.environ.get("ROCSTAR_ALL_ATTACKS") else []
"""Between the strongest configuration and the weakest, which always run. Each takes a minute or two."""

TIME_LIMIT_S = 900
"""The suite takes a minute; a hang must still end."""

Verdicts = list[dict[str, Any]]


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


@functools.cache
def verdicts_of(configuration: str, python: Path | None, *arguments: str) -> Verdicts:
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
        f"{verdict['name']} {verdict['variant']}: {problem}"
        for verdict in verdicts
        for problem in verdict["problems"]
    ]


@pytest.mark.privileged
@pytest.mark.parametrize("configuration", ["slots", "tier A", *EXTRA])
@pytest.mark.parametrize("group", GROUPS)
def test_every_program_comes_to_what_it_must(
    configuration: str, group: str, public_python: Path | None
) -> None:
    members = [one for one in verdicts_of(configuration, public_python) if one["group"] == group]
    assert members
    assert failures(members) == []


@pytest.mark.privileged
@pytest.mark.parametrize("configuration", ["slots", *EXTRA])
def test_an_attack_gets_through_without_the_layer_that_holds_it(
    configuration: str, public_python: Path | None
) -> None:
    verdicts = verdicts_of(configuration, public_python, "--breaches")
    assert len([one for one in verdicts if not one["skipped"]]) >= 50
    assert failures(verdicts) == []
