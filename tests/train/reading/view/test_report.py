"""report.html of a run: the viewer as one file, and a table that is read without a script."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from rocstar.train.reading.view import listing
from rocstar.train.reading.view.chart import evaluations, main_set_of
from rocstar.train.reading.view.document import encode_json
from rocstar.train.reading.view.export_page import report_page, write_report
from rocstar.train.reading.view.listing import OpenRecords
from rocstar.train.reading.view.reader import RunReader
from rocstar.train.reading.view.viewed_run import STEPS, RunIndex
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.metrics import MetricsFileError, MetricsWriter

from ...evaluation.eval_folders import MadeSet, make_folder
from .view_runs import kept_in, make_view_run


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


def test_each_trajectory_has_what_a_server_would_answer(run: Path, page: str) -> None:
    answers: dict[str, Any] = kept_in(page)["answers"]
    reader = RunReader(RunIndex([run]).runs, reveal=False)
    rows = answers[f"list&run={run.name}"]["rows"]
    assert [(row["file"], row["row"]) for row in rows] == reader.sample(run.name, STEPS, 10)
    for row in rows:
        assert f"tokens&file={row['file']}&from=0&row={row['row']}&run={run.name}" in answers
        group = answers[f"group&run={run.name}&step={row['step']}&task={row['task']}"]
        alone = reader.group(run.name, step=row["step"], task=int(row["task"], 16))
        assert group == json.loads(encode_json(alone))
    whole = reader.run(run.name) | {"evaluated": ["1", "2", "3"], "collections": None}
    found = answers[f"run&run={run.name}"] | {"collections": None}
    assert found == json.loads(encode_json(whole))


def test_it_begins_with_the_run_and_has_a_table_for_readers_without_scripts(page: str, tags_of: Any) -> None:
    assert kept_in(page)["start"] == "#/run?run=a+run+%26+more"
    text = page.partition('<main id="main" tabindex="-1">')[2].partition("</main>")[0]
    tags = tags_of(text)
    assert tags.count("table") == 1 and "a run & more" in tags.text
    assert "reward/mean0.600.90" in tags.text, "the first and the last value"


def test_a_run_has_its_recipe_and_its_drawings(run_dir: Path) -> None:
    page = report_page(run_dir)
    told = kept_in(page)["answers"][f"run&run={run_dir.name}"]
    assert told["config"] == '[model]\nname = "tiny <b>bold</b>"\n', "as it is written"
    titles = [one["title"] for one in told["charts"]]
    assert {"Reward", "Tool errors in correct trajectories", "Length", "SFT loss", "Outcomes"} <= set(titles)
    assert "Clipped tokens" not in titles, "a curve of zeros tells nothing"


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
    assert {one for one in opened if one != "puzzles"} == {"step_000001", "step_000004"}


def test_what_is_hidden_is_in_no_part_of_it(page: str) -> None:
    assert "hidden question" not in page
    assert "hidden question" not in json.dumps(kept_in(page))


def test_names_and_recipes_cannot_act(tmp_path: Path, tags_of: Any, attack: str) -> None:
    run = tmp_path / "<img src=x onerror=alert(1)>"
    run.mkdir()
    (run / "config.toml").write_text(attack)
    with MetricsWriter(run / "metrics.jsonl") as writer:
        for step, stage in enumerate([f"a{attack}", f"b{attack}"]):
            writer.write(
                {"reward/mean": 0.5, f"eval/x{attack.replace('/', '')}/avg@4": 0.5}, step=step, stage=stage, phase="rl"
            )
    tags = tags_of(write_report(run).read_text())
    scripts = [attributes.get("type") for tag, attributes in tags.found if tag == "script"]
    assert scripts == ["application/json", None], "answers, and the page's own"
    assert tags.count("img") == 0


def test_rows_alone_make_a_report(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.write({"loss/sft": 2.0}, step=1, stage="sft", phase="sft")
    row = {"step": 1, "stage": "rl", "phase": "rl", "time_s": 1.0, "future/metric": 3.0}
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "trajectories" / "step_1.jsonl").write_text("torn\n")
    answers = kept_in(write_report(tmp_path).read_text())["answers"]
    told = answers[f"metrics&run={tmp_path.name}"]["metrics"]
    assert [one["name"] for one in told] == ["future/metric", "loss/sft"]
    (problem,) = answers[f"list&run={tmp_path.name}"]["problems"]
    assert "step_1.jsonl:1: not a trajectory record" in problem


def test_evaluations_take_the_last_of_a_repeated_step(evaluation: Callable[..., dict[str, float]]) -> None:
    base = {"stage": "rl", "phase": "eval", "time_s": 0.0}
    rows = [
        base | evaluation(0.2) | {"step": 120, "stage": "sft"},
        base | evaluation(0.5) | {"step": 10},
        base | evaluation(0.6) | {"step": 10, "eval/heldout/ci_low": None},
        base | {"step": 10, "eval/odd/avg@4": None, "eval/odd/pass@4": 0.5},
    ]
    found = evaluations(rows)
    assert [(e.step, e.value, e.low) for e in found] == [(0, 0.2, pytest.approx(0.12)), (10, 0.6, None)]
    assert main_set_of(found) == "heldout"
    assert main_set_of([]) == ""


@pytest.mark.parametrize(
    ("rows", "words"), [("", "has no rows yet"), ("{}\n", "not a row"), (None, "metrics.jsonl does not exist")]
)
def test_a_directory_without_rows_is_refused(tmp_path: Path, rows: str | None, words: str) -> None:
    if rows is not None:
        (tmp_path / "metrics.jsonl").write_text(rows)
    with pytest.raises((ConfigError, MetricsFileError), match=words):
        write_report(tmp_path)
    assert not list(tmp_path.glob("report*"))
