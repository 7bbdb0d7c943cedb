"""What is not run is said in one line, with the way to have it run; and every skip can be said so."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .needs import REDIS, hide_gpus, left_out, modules

ROOT = Path(__file__).parents[1]


def test_reasons_are_counted_the_most_frequent_first() -> None:
    reasons = [*["needs redis-server: apt-get install redis-server"] * 3, "needs a GPU: a machine with one"]
    assert left_out(reasons) == (
        "left out: 3 tests that need redis-server: apt-get install redis-server; "
        "1 test that needs a GPU: a machine with one"
    )
    assert left_out([]) == ""


def test_a_reason_in_other_words_is_not_hidden() -> None:
    assert left_out(["malloc is\n not ours", "malloc is not ours"]) == "left out: 2 tests: malloc is not ours"


@pytest.mark.parametrize(
    ("selected", "has_gpu", "visible"),
    [("gpu", True, "0"), ("", True, "-1"), ("not slow", True, "-1"), ("", False, "0")],
)
def test_a_gpu_is_for_the_tests_with_its_marker(
    selected: str, has_gpu: bool, visible: str, tmp_path: Path
) -> None:
    """Elsewhere two ranks of a test would both learn on it."""
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    hide_gpus(selected, environ, [tmp_path if has_gpu else tmp_path / "none"])
    assert environ["CUDA_VISIBLE_DEVICES"] == visible


def test_a_package_that_is_missing_is_a_need() -> None:
    (found,) = modules("re")
    assert found is re
    with pytest.raises(pytest.skip.Exception, match="needs the package nowhere_to_be: make setup"):
        modules("re", "nowhere_to_be.found")


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_says_it_above_its_last_line(processes: str) -> None:
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "ROCSTAR_SGLANG"))
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", processes]
    tests = ["sglang/test_record.py", "test_left_out.py::test_a_package_that_is_missing_is_a_need"]
    ended = subprocess.run(
        [*command, *(f"tests/{name}" for name in tests)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said, last = ended.stdout.splitlines()[-2:]
    assert said == "left out: 1 test that needs SGLang: make test-sglang"
    assert "1 passed, 1 skipped" in last


def test_a_skip_that_names_a_remedy_is_a_need() -> None:
    """Written by hand it would be counted apart from the others of its kind."""
    by_hand = re.compile(r"importorskip\(|skip(if)?\([^)]*(apt-get|pip install|redis|root|installed)")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (ROOT / "tests").rglob("*.py")
        if path.name not in {"needs.py", "test_left_out.py"}
        for match in by_hand.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found, "use tests/needs.py"
    assert by_hand.search(f'pytest.skip("{REDIS.reason}")')
