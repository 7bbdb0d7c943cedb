"""The tests can fail: each planted bug below must be caught by the tests named beside it.

    row -> source text with the bug -> child pytest that imports it in place of the real module -> must fail

No file of the repository is touched. The child finds a `sitecustomize.py` first on its path; that puts a
finder in front of all others which compiles the given text for its module and leaves the rest alone, so
it works for editable installs, wheels and plain checkouts, and for processes that the tests start.

A row proves something only if its tests pass without the bug, if the module was really imported, and if
what it names is still there; each of these is checked too. Text that a module reads from its own file
(Triton kernels do) is not mutated. Where the child leaves tests out for what this machine lacks, the row says
nothing, and is left out for the same reason.

`make planted` plants them; `make test` sees that each row names text and a test that exist.
"""

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from . import needs, planted_bugs
from .patience import PATIENCE_S, PATIENCE_VARIABLE
from .planted_bugs import BUGS, Bug
from .symbols import PACKAGES, ROOT, find_symbol, find_tests, module_name, replaced
from .warm_python import warm

PATIENCE_WITH_A_BUG_S = 60.0
"""What a planted bug keeps from happening does not come later, either."""

DEADLINE_S = 500.0
"""For a hang: a child takes seconds, on a busy machine a minute."""

ALL = needs.plants_all()


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
    """Run the selected tests in a child process in which each text stands in for the source of its file.

    The calling test is skipped if none failed and the child had to leave tests out.
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
    # Nobody reads why an assertion fails, and what pytest finds out about it can take minutes.
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", *selections]
    # A temporary folder of its own: each new numbered one may remove older ones, the parent run's among them.
    arguments += [f"--basetemp={tmp_path / 'child'}", f"--junitxml={tmp_path / 'child.xml'}"]
    result = warm().pytest(arguments, folder=tmp_path, environment=env, cwd=ROOT, deadline_s=DEADLINE_S)
    if result.returncode == pytest.ExitCode.OK and (lacking := lacks(tmp_path / "child.xml")):
        pytest.skip(lacking)
    assert result.returncode != pytest.ExitCode.USAGE_ERROR, f"{', '.join(selections)}: {result.stderr}"
    never = [name for name in files if not (tmp_path / f"{name}.imported").exists()]
    assert not never, f"{', '.join(selections)} never imported {', '.join(never)}:\n{result.stdout}"
    return result


def lacks(junit_xml: Path) -> str | None:
    """Why tests of a child were left out, if for something that this machine lacks."""
    reasons = (skipped.get("message", "") for skipped in ElementTree.parse(junit_xml).iter("skipped"))
    return next((reason for reason in reasons if reason.startswith("needs ")), None)


def test_every_row_names_what_exists() -> None:
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
    """Those of a package in one child: most of its time goes by before the first test."""
    paths = [(find_symbol(bug.symbol).path, bug) for bug in BUGS]
    rows = [(path, bug) for path, bug in paths if path.is_relative_to(ROOT / package)]
    assert rows, f"no row plants a bug in {package}"
    texts = {path: path.read_text(encoding="utf-8") for path, _ in rows}
    result = run_with_sources(texts, sorted({find_tests(bug.caught_by) for _, bug in rows}), tmp_path)
    assert result.returncode == pytest.ExitCode.OK, result.stdout[-3000:] + result.stderr[-1000:]


def test_every_row_has_a_line_of_its_own_and_is_there_once() -> None:
    """So that a merge of two branches with new rows cannot join one's with the other's."""
    text = Path(planted_bugs.__file__).read_text(encoding="utf-8")
    rows = re.findall(r"^    Bug\(.+\),$", text, flags=re.MULTILINE)
    assert len(set(BUGS)) == len(BUGS) == len(rows), "a row is there twice, or in more than one line"


def selection_skipped_for(reason: str, tmp_path: Path) -> str:
    """A file with one test, which is always left out."""
    selection = tmp_path / "test_left_out.py"
    selection.write_text(f"import pytest\n\ndef test_it() -> None:\n    pytest.skip({reason!r})\n")
    return str(selection)


def test_a_row_whose_test_lacks_something_is_left_out_too(tmp_path: Path) -> None:
    reason = "needs thunder: wait for it"
    with pytest.raises(pytest.skip.Exception, match=reason):
        run_with_sources({ROOT / "train/any.py": ""}, [selection_skipped_for(reason, tmp_path)], tmp_path)


def test_a_row_whose_test_is_left_out_for_another_reason_is_not(tmp_path: Path) -> None:
    """A test that nobody can ever have run would prove nothing for ever."""
    with pytest.raises(AssertionError, match="never imported"):
        run_with_sources({ROOT / "train/any.py": ""}, [selection_skipped_for("Sunday", tmp_path)], tmp_path)
