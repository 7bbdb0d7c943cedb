"""report.html as the viewer's file: read without a script, and with one each card leads to more."""

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from rocstar.train.reading.view import listing
from rocstar.train.reading.view.drawings import charts
from rocstar.train.reading.view.exported_responses import encode_json
from rocstar.train.reading.view.listing import OpenRecords
from rocstar.train.reading.view.reader import RunReader
from rocstar.train.reading.view.report import report_page
from rocstar.train.reading.view.run_index import RunIndex
from rocstar.train.reading.view.viewed_run import STEPS
from rocstar.train.record.metrics import MetricsWriter, read_metrics
from rocstar.train.record.report.sample import sample

from ...evaluation.eval_folders import MadeSet, make_folder
from .test_export_page import kept_in
from .view_runs import make_view_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with three evaluations."""
    made = make_view_run(tmp_path_factory.mktemp("report") / "a run & more", steps=4)
    for step in (1, 2, 3):
        make_folder(made / "evaluations" / f"step_{step}", MadeSet(name="puzzles", num=2, k=2))
    return made


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return report_page(run)


def addresses(page: str) -> list[dict[str, str]]:
    """The trajectories that its cards lead to."""
    found = re.findall(r'href="#/trajectory\?([^"]*)"', page)
    return [{name: values[0] for name, values in parse_qs(unescape(query)).items()} for query in found]


def test_each_card_leads_to_what_a_server_would_answer(run: Path, page: str) -> None:
    answers: dict[str, Any] = kept_in(page)["answers"]
    reader = RunReader(RunIndex([run]), reveal=False)
    led = addresses(page)
    drawn = [(path.stem, str(row)) for (path, row), _ in sample(run).shown]
    assert len(drawn) == 10 == page.count('<details class="trajectory')
    assert [(at["file"], at["row"]) for at in led] == drawn, "those that are drawn, in their order"
    for at in led:
        where = f"file={at['file']}&row={at['row']}&run={run.name}"
        told = answers[f"conversation&{where}"]
        alone = reader.conversation(run.name, STEPS, at["file"], int(at["row"]))
        assert told == json.loads(encode_json(alone))
        assert f"strip&{where}" in answers
        assert f"tokens&file={at['file']}&from=0&row={at['row']}&run={run.name}" in answers
        listed = told["listed"]
        group = answers[f"group&run={run.name}&step={listed['step']}&task={listed['task']}"]
        assert group == json.loads(
            encode_json(reader.group(run.name, step=listed["step"], task=int(listed["task"], 16)))
        )


def test_it_begins_with_what_is_drawn_and_asks_for_no_script(page: str) -> None:
    assert kept_in(page)["start"] == "#/report?run=a+run+%26+more"
    main = page.partition('<main id="main" tabindex="-1">')[2].partition("</main>")[0]
    assert main.strip().startswith('<article id="drawn">') and main.strip().endswith("</article>")
    assert "<h2>Curves</h2>" in main and "10 trajectories to read" in main
    assert "<noscript>" not in page


def test_it_draws_what_the_page_of_a_run_draws(tmp_path: Path) -> None:
    row = {
        "reward/correct_share": 0.5,
        "mismatch_kl/mean": 0.1,
        "tokens/generated": 9.0,
        "tool/status/ok": 2.0,
    }
    row |= {"time/step": 2.0, "time/learn": 2.0, "ledger/generated": 4.0, "ledger/kept": 4.0}
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        for step in (1, 2):
            writer.write(row, step=step, stage="rl", phase="rl")
    drawn, page = charts(read_metrics(tmp_path / "metrics.jsonl")), report_page(tmp_path)
    assert len(drawn) == 6 + 1 == page.count("<figcaption>"), (
        "curves, with what no reward differs from, and bars"
    )
    assert all(one["screen"] in page and one["phone"] in page for one in drawn)


def test_evaluations_are_those_of_both_ends(page: str) -> None:
    asked = [one for one in kept_in(page)["answers"] if one.startswith("evaluation&")]
    assert [parse_qs(one)["step"] for one in asked] == [["1"], ["3"]]


def test_only_the_files_of_both_ends_are_opened(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory and time do not grow with the steps of a run."""
    opened = []
    plain = listing.open_records

    def counted(path: Path) -> OpenRecords:
        opened.append(path.stem)
        return plain(path)

    monkeypatch.setattr(listing, "open_records", counted)
    report_page(run)
    assert set(opened) == {"step_000001", "step_000004"}


def test_what_is_hidden_is_in_no_part_of_it(page: str) -> None:
    assert "hidden question" not in page
    assert "hidden question" not in json.dumps(kept_in(page))


def test_lines_have_no_index_and_lead_nowhere(run_dir: Path, tmp_path: Path) -> None:
    """Reading them again would take memory that grows with the file."""
    copy = tmp_path / "lines"
    shutil.copytree(run_dir, copy)
    page = report_page(copy)
    assert "10 trajectories to read" in page and not addresses(page)
    assert set(kept_in(page)["answers"]) == {"runs"}
