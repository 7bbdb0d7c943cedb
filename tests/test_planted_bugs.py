"""Each planted bug must be caught by the tests named beside it.

    row -> source text with the bug -> child pytest that imports it in place of the real module -> must fail

A row is a line of planted_bugs.jsonl: the symbol, a fragment of it, what the bug makes of that, and the tests.
`symbols.py` says how each is named: neither a move of the code nor one of the tests changes a row. Rows stand
in the order of their symbols, each in one line, so that a merge of two branches has the rows of both.

No file of the repository is changed. A `sitecustomize.py` on the child's path installs a finder that compiles
the given text for its module; this works for editable installs, wheels and plain checkouts, and for processes
that the tests start.

A row proves something only if its tests pass without the bug, its module is imported, and its names exist;
each of these is checked too. Source that a module reads from its own file (Triton kernels) is not changed. If
the child skips tests for a need that this machine lacks, the row is skipped for the same reason.

`make planted` plants the bugs; `make test` checks that each row names existing text and an existing test.
"""

import json
import os
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from . import needs
from .patience import PATIENCE_S, PATIENCE_VARIABLE
from .symbols import PACKAGES, ROOT, find_symbol, find_tests, module_name, replaced
from .warm_python import warm

PATIENCE_WITH_A_BUG_S = 60.0
"""A test that waits for an event which the planted bug prevents ends after this time."""

DEADLINE_S = 500.0
"""The limit for a child that hangs; a child takes seconds, or a minute on a busy machine."""

ALL = needs.plants_all()


class Bug(NamedTuple):
    """A bug to plant, and `caught_by`: the test file, or one test in it, that fails with it."""

    symbol: str
    right: str
    wrong: str
    caught_by: str


ROWS = Path(__file__).with_name("planted_bugs.jsonl").read_text(encoding="utf-8").splitlines()
BUGS = [Bug(*json.loads(row)) for row in ROWS]

SITECUSTOMIZE = """
import importlib.machinery
import importlib.util
import pathlib
import sys

FILES, HERE = {files!r}, pathlib.Path(__file__).parent


class MutatedLoader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):  # never the cached bytecode of the real text
        (HERE / (fullname + ".imported")).touch()
        text = (HERE / (fullname + ".txt")).read_text(encoding="utf-8")
        return compile(text, FILES[fullname], "exec")


class MutatedFinder:
    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if file := FILES.get(fullname):
            loader = MutatedLoader(fullname, file)
            return importlib.util.spec_from_file_location(fullname, file, loader=loader)


sys.meta_path.insert(0, MutatedFinder)
"""


def run_with_sources(
    texts: Mapping[Path, str], selections: Sequence[str], tmp_path: Path, patience_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """Run the selected tests in a child process in which each text replaces the source of its file.

    The calling test is skipped if none fails and the child skips tests for a missing need.
    """
    files = {module_name(path): str(path) for path in texts}
    for path, text in texts.items():
        (tmp_path / f"{module_name(path)}.txt").write_text(text, encoding="utf-8")
    site = SITECUSTOMIZE.format(files=files)
    (tmp_path / "sitecustomize.py").write_text(site, encoding="utf-8")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV"))}
    env[needs.PLANTED_HERE] = "1"
    env[PATIENCE_VARIABLE] = str(patience_s)
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [env.get("PYTHONPATH")])])
    # Plain assertions: the details of a failure are not shown, and collecting them can take minutes.
    arguments = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--assert=plain", *selections]
    # An own base folder: a new numbered folder may remove older ones, also those of the parent run.
    arguments += [f"--basetemp={tmp_path / 'child'}", f"--junitxml={tmp_path / 'child.xml'}"]
    command = [str(warm().executable), *arguments]
    files_of_output = [tmp_path / "child.out", tmp_path / "child.err"]
    with files_of_output[0].open("w") as out, files_of_output[1].open("w") as err:
        ended = subprocess.run(command, stdout=out, stderr=err, cwd=ROOT, env=env, timeout=DEADLINE_S, check=False)
    printed = (path.read_text(errors="replace") for path in files_of_output)
    result = subprocess.CompletedProcess(command, ended.returncode, *printed)
    if result.returncode == pytest.ExitCode.OK and (lacking := lacks(tmp_path / "child.xml")):
        pytest.skip(lacking)
    assert result.returncode != pytest.ExitCode.USAGE_ERROR, f"{', '.join(selections)}: {result.stderr}"
    never = [name for name in files if not (tmp_path / f"{name}.imported").exists()]
    assert not never, f"{', '.join(selections)} never imported {', '.join(never)}:\n{result.stdout}"
    return result


def lacks(junit_xml: Path) -> str | None:
    """Return the first need for which the child skips a test, or None."""
    reasons = (skipped.get("message", "") for skipped in ElementTree.parse(junit_xml).iter("skipped"))
    return next((reason for reason in reasons if reason.startswith("needs ")), None)


def test_every_row_names_what_exists() -> None:
    assert len(set(BUGS)) == len(BUGS), "a row is there twice"
    for bug in BUGS:
        assert replaced(bug.symbol, bug.right, bug.wrong) and find_tests(bug.caught_by)


@needs.PLANTED.unless(ALL)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.symbol}: {bug.wrong}")
def test_planted_bug_is_caught(bug: Bug, tmp_path: Path) -> None:
    text, path = replaced(bug.symbol, bug.right, bug.wrong), find_symbol(bug.symbol).path
    result = run_with_sources({path: text}, [find_tests(bug.caught_by)], tmp_path, PATIENCE_WITH_A_BUG_S)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, (
        f"{bug.caught_by} did not fail on {bug.wrong!r} but ended with {result.returncode}:\n"
        f"{result.stdout[-3000:]}{result.stderr[-1000:]}"
    )


@needs.PLANTED.unless(ALL)
@pytest.mark.parametrize("package", PACKAGES)
def test_selections_pass_without_a_bug(package: str, tmp_path: Path) -> None:
    """One child for each package: most of its time passes before the first test."""
    paths = [(find_symbol(bug.symbol).path, bug) for bug in BUGS]
    rows = [(path, bug) for path, bug in paths if path.is_relative_to(ROOT / package)]
    assert rows, f"no row plants a bug in {package}"
    texts = {path: path.read_text(encoding="utf-8") for path, _ in rows}
    result = run_with_sources(texts, sorted({find_tests(bug.caught_by) for _, bug in rows}), tmp_path)
    assert result.returncode == pytest.ExitCode.OK, result.stdout[-3000:] + result.stderr[-1000:]
