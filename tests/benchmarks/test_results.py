"""The committed results and their page: keys, commits, and equality with docs/results.md."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import report  # noqa: E402
import results_page  # noqa: E402

RESULTS = results_page.read_results()
GOOD: dict[str, Any] = {
    "benchmark": "x",
    "commit": "0" * 40,
    "is_dirty": False,
    "machine": {"cpu": "c", "cores": 2},
    "date": "2026-01-31",
    "seeds": None,
    "command": "python x.py",
    "claims": [report.claim("calls per second", 2.5, "calls/s", at_least=2)],
}


def test_results_and_page_pass_the_lint() -> None:
    if not results_page.has_history():
        pytest.skip("the history is not whole here")
    assert results_page.check(RESULTS, results_page.PAGE.read_text(encoding="utf-8")) == []


def test_a_stale_page_and_a_commit_that_is_not_an_ancestor_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_page, "has_history", lambda: True)
    monkeypatch.setattr(results_page, "commits_since", lambda commits: {"0" * 40: 3})
    (stale,) = results_page.check({"x.json": GOOD}, "")
    assert stale.startswith("docs/results.md is stale")
    (foreign,) = results_page.check({"x.json": {**GOOD, "commit": "1" * 40}}, "")
    assert "not an ancestor" in foreign


@pytest.mark.parametrize("name", GOOD)
def test_a_result_without_a_key_is_refused(name: str) -> None:
    (problem,) = results_page.problems({"x.json": {k: v for k, v in GOOD.items() if k != name}})
    assert problem.startswith(f"x.json: {name} missing")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("commit", "abc", "not a full hash"),
        ("date", "yesterday", "not YYYY-MM-DD"),
        ("is_dirty", True, "uncommitted changes"),
        ("claims", [], "no claims"),
        ("claims", [{"claim": "c", "value": 1}], "a claim without unit, bar, met"),
    ],
)
def test_a_result_that_says_too_little_is_refused(name: str, value: Any, message: str) -> None:
    (problem,) = results_page.problems({"x.json": {**GOOD, name: value}})
    assert message in problem


def test_a_row_has_figure_bar_origin_and_age() -> None:
    since = {"0" * 40: 7, "1" * 40: 208}
    old = {**copy.deepcopy(GOOD), "commit": "1" * 40, "seeds": [1, 2]}
    old["claims"] = [report.claim("calls | lost", 45_000, at_most=0)]
    first, second = results_page.page({"a.json": GOOD, "b.json": old}, since).split("\n## ")[1:]
    assert first.startswith("a\n\n`python x.py`: c, 2 cores, `00000000`, 2026-01-31.\n")
    assert "| calls per second | 2.5 calls/s | >= 2 |\n" in first
    assert second.splitlines()[2].endswith("`11111111`, 2026-01-31, 2 seeds, **old**.")
    assert second.endswith("| calls \\| lost | 45,000 | **missed**: <= 0 |\n")


def test_words_that_all_claims_share_are_written_once() -> None:
    claims = [report.claim(f"pool: calls lost, {part}", 3, "calls") for part in ("short", "long")]
    assert results_page.rows(claims) == ["| pool: calls lost | figure |", "|---|---|", "| short | 3 |", "| long | 3 |"]


def test_a_missed_bar_is_seen_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    met = report.claim("fast", 2.0, at_most=2.0)
    missed = report.claim("many", 699.0, at_least=700.0)
    out = tmp_path / "new" / "x.json"
    assert report.finish("x", {"figure": 1}, [met], None) == 0
    assert report.finish("x", {"figure": 1, "rows": [{"a": 1}]}, [met, missed], out, seeds=range(3)) == 1
    assert "MISSED  many" in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert written["figure"] == 1 and written["rows"] == [{"a": 1}] and written["seeds"] == [0, 1, 2]
    assert written["machine"]["cores"] >= 1 and written["claims"] == [met, missed]
    assert results_page.problems({"x.json": {**written, "is_dirty": False, "commit": "0" * 40}}) == []


def test_a_tree_without_history_takes_the_given_commit() -> None:
    found = report.head("x", commit="a" * 40 + "-dirty")
    assert (found["commit"], found["is_dirty"]) == ("a" * 40, True)


def test_a_machine_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert report.head("x")["commit"] == ""


def test_a_command_shows_no_path_of_this_machine() -> None:
    given = ["benchmarks/x.py", "cpu", "--data", "../a/b.jsonl", "--judge=/c/d", "--scale=0.5"]
    assert report.command(given) == "python benchmarks/x.py cpu --data b.jsonl --judge=d --scale=0.5"
