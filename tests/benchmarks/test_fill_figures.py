"""Figures of the pages come from the committed results."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fill_figures
from fill_figures import main

RESULTS = {
    "ratio": 2.718,
    "seconds": 144.1,
    "small": 1.3e-7,
    "half": 842.5,
    "peer": "TRL 1.16.0",
    "by_0.25_at least": 10,
    "rows": [
        {"program": "print", "route": "/v1/run", "ms": 1.14, "met": True},
        {"program": "print", "route": "/run", "ms": 2.5},
    ],
    "deep": {"one scheduler": {"s": [1.0, 2.0, 6.0]}},
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "some.json").write_text(json.dumps(RESULTS))
    return folder


def filled(results: Path, text: str) -> str:
    page = results.parent / "page.md"
    page.write_text(text)
    assert main([str(page), "--results", str(results)]) == 0
    return page.read_text()


@pytest.mark.parametrize(
    ("mark", "figure"),
    [
        ("ratio; .2f", "2.72"),
        ("ratio; *1000 ,.0f", "2,718"),
        ("ratio; /2 .1f", "1.4"),
        ("seconds; minutes", "2 min 24 s"),
        ("by_0.25_at least; d", "10"),
        ("rows[program=print, route=/run].ms; .1f", "2.5"),
        ("rows[program=print, route=/v].ms; .2f", "1.14"),
        ("rows[-1].ms; .0%", "250%"),
        ("deep.one scheduler.s[1]; *1e-8 .1e", "2.0e-8"),
        ("small; .1e", "1.3e-7"),
        ("half; .0f", "843"),
        ("half; +.1%", "+84250.0%"),
        ("max deep.one scheduler.s; .0f", "6"),
        ("median deep.one scheduler.s; .0f", "2"),
        ("min rows.ms; .2f", "1.14"),
        ("len rows; d", "2"),
    ],
)
def test_a_mark_is_filled_in(results: Path, mark: str, figure: str) -> None:
    assert filled(results, f"It is (<!--some {mark}-->).") == f"It is ({figure}<!--some {mark}-->)."


def test_only_the_figure_before_the_mark_is_replaced(results: Path) -> None:
    text = "| 3 of 1.00<!--some ratio; .2f--> and 9 min 9 s<!--some seconds; minutes-->|4<!-- a comment -->\n"
    want = (
        "| 3 of 2.72<!--some ratio; .2f--> and 2 min 24 s<!--some seconds; minutes-->|4<!-- a comment -->\n"
    )
    assert filled(results, text) == want
    assert filled(results, want) == want


def test_code_is_left_alone(results: Path) -> None:
    text = "```\n1<!--some nothing; .2f-->\n```\n"
    assert filled(results, text) == text


def test_a_stale_figure_is_found_and_nothing_changed(
    results: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("first\nIt is 3.00<!--some ratio; .2f-->.\n")
    assert main([str(page), "--results", str(results), "--check"]) == 1
    assert capsys.readouterr().out == f"{page}:2: 3.00 stands where some.json has 2.72\n"
    assert "3.00" in page.read_text()
    assert main([str(page), "--results", str(results)]) == 0
    assert main([str(page), "--results", str(results), "--check"]) == 0


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("other ratio; .2f", "there is no other.json"),
        ("some nothing; .2f", "nothing is at 'nothing' of 'nothing'; there is 'ratio', 'seconds'"),
        ("some rows[program=print].ms; .2f", "2 elements of 'rows[program=print].ms' fit"),
        ("some rows[2].ms; .2f", "outside of a list of 2"),
        ("some ratio[0]; .2f", "no list is at '[0]'"),
        ("some max ratio; .2f", "'ratio' is no list"),
        ("some peer; .2f", "'TRL 1.16.0' is no number"),
        ("some rows[0].met; d", "True is no number"),
        ("some ratio; .2q", "format"),
        ("some; .2f", "has not the form"),
    ],
)
def test_a_mark_that_cannot_be_filled_names_page_and_line(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mark: str, message: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"\nIt is 1<!--{mark}-->.\n")
    before = page.read_text()
    assert main([str(page), "--results", str(results)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"fill_figures: {page}:2: ") and message.lower() in said.lower()
    assert page.read_text() == before


def test_the_figures_of_the_pages_are_those_of_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr()
    marks = sum(len(fill_figures.FIGURE.findall(page.read_text())) for page in fill_figures.pages())
    assert marks > 50, "the headline figures are marked"
