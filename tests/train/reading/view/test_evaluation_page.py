"""report.html of an evaluation: the content of the folder without hidden texts."""

import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rocstar.engine.record.json_record import from_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.types import Scored
from rocstar.sandbox.extras import shell_command
from rocstar.train.cli import main
from rocstar.train.evaluation.evaluation_folder import EvaluationFolder
from rocstar.train.evaluation.tables import SetNumbers
from rocstar.train.reading.view.evaluation_page import _estimates, grid, select_attempts
from rocstar.train.reading.view.export_page import NUM_ATTEMPTS, write_eval_report
from rocstar.train.reading.view.listing import Listing
from rocstar.train.recipe.errors import ConfigError

from ...evaluation.eval_folders import MadeSet, make_folder
from .view_runs import kept_in

SECRET = "what is 3 plus 4"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sets, one of them hidden; read-only."""
    return make_folder(
        tmp_path_factory.mktemp("pages") / "suite",
        MadeSet(name="aime24", num=30, k=8),
        MadeSet(name="own", num=60, k=4, failing=0.1, dirty=(1, 2)),
        MadeSet(name="gpqa_diamond", num=12, k=4, hidden=True),
    )


def made(folder: Path, *, reveal: bool = False) -> dict[str, Any]:
    """The answers of a folder's report."""
    answers: dict[str, Any] = kept_in(write_eval_report(folder, reveal=reveal).read_text())["answers"]
    return answers


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Any]:
    return made(folder)


def test_the_page_says_what_was_evaluated_and_how(answers: dict[str, Any]) -> None:
    told = answers["evaluation&run=suite&step=0"]
    text = json.dumps([*told["facts"].items(), told["settings"]["aime24"]])
    for part in (
        "weights abababababab, tokenizer cdcdcdcdcdcd, template efefefefefef",
        "embedded, float32",
        "confined: landlock, rlimits, seccomp",
        "commit 0123456789ab",
        "Prompted as agent: 8 samples at temperature 0.6, at most 30,000 tokens and 30 turns.",
        "made/up at 000000000000, the published rows, digest 121212121212",
    ):
        assert part in text, part
    assert told["model"] == "models/tiny-135m"
    assert told["command"] == shell_command("eval", "models/tiny-135m", "--set", "aime24")


def test_the_numbers_are_those_of_the_results(folder: Path, tags_of: Any) -> None:
    """In the table that is read without a script, too."""
    text, results = tags_of(write_eval_report(folder).read_text()).text, (folder / "results.json").read_text()
    told = made(folder)["evaluation&run=suite&step=0"]["tables"][0]["rows"]
    for name, one in json.loads(results)["sets"].items():
        row = next(row for row in told if row[0] == name)
        for scores in (one["failed_as_wrong"], one.get("failed_left_out", one)):
            low, high = scores["interval"]
            assert f"{scores['avg']:.3f} [{low:.3f}, {high:.3f}]" in row and row[2] in text


def test_every_attempt_is_counted_as_the_engine_understands_it(folder: Path) -> None:
    file = EvaluationFolder(folder).attempts("own")
    listing = Listing()
    listing.refresh([file])
    found = grid(folder, "own", listing, reveal=False)
    attempts = [from_record(r) for r in read_records(file)]
    cells = "".join(one["cells"] for one in sorted(found["questions"], key=lambda one: one["row"]))
    for code, t in zip(cells, attempts, strict=True):
        if not isinstance(t.outcome, Scored):
            assert code == "f"
        else:
            assert code == ("k" if t.outcome.is_correct else "t" if t.is_truncated else "w")
    assert set(cells) == set("kwtf"), "the set has some of each"
    shares = [one["correct"] / one["scored"] for one in found["questions"] if one["scored"]]
    assert shares == sorted(shares), "the hardest come first"
    lengths, turns = found["figures"]
    assert lengths["title"] == "Length"
    scored = [t for t in attempts if isinstance(t.outcome, Scored)]
    for drawn, values in ((lengths, [len(t.ids) for t in scored]), (turns, [len(t.turns) for t in scored])):
        counts = np.array([one["y"] for one in drawn["series"]])
        assert len(drawn["heads"]) <= 32 and counts.sum() == len(values) == len(scored)
    assert turns["heads"][2] == "turns: 2" and " to " in lengths["heads"][2]


def svg_of(figure: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(figure["screen"])


def test_questions_without_a_verdict_come_last(tmp_path: Path) -> None:
    """It is unknown how hard they are."""
    questions = {name: {"attempts": attempts} for name, attempts in (("lost", [None]), ("yes", [1.0]), ("no", [0.0]))}
    sets = {"own": {"k": 1, "questions": questions}}
    (tmp_path / "results.json").write_text(json.dumps({"sets": sets}))
    found = grid(tmp_path, "own", None, reveal=False)
    assert [one["id"] for one in found["questions"]] == ["no", "yes", "lost"]
    assert found["notes"] == ["own.jsonl does not exist"]


def test_attempts_to_read_are_of_questions_solved_sometimes_and_never() -> None:
    cells = ("www", "wft", "wkw", "kwt", "kk")
    rows = [{"row": 10 * n, "cells": c, "correct": c.count("k")} for n, c in enumerate(cells)]
    assert select_attempts(rows, 100) == [21, 20, 0, 30, 31, 32, 10, 12, 11, 40]
    assert select_attempts(rows, 1) == [21] and select_attempts([], 5) == []


def test_the_forest_has_what_differs_alone() -> None:
    def kinds(**changes: object) -> list[int]:
        one = {"k": 4, "failed_left_out": {"avg": 0.5}, "failed_as_wrong": {"avg": 0.45}, "failed": 3}
        return [mark.kind for mark in _estimates(msgspec.convert(one | changes, SetNumbers))]

    assert kinds() == [0, 1]
    assert kinds(failed=0) == [0]
    assert kinds(contamination={"num_contaminated": 1, "avg_clean": 0.4}) == [0, 1, 2]
    assert kinds(contamination={"num_contaminated": 0, "avg_clean": 0.4}) == [0, 1]
    assert kinds(failed_as_wrong={"avg": None}, failed=0) == []


def test_the_page_has_some_attempts_of_each_set(answers: dict[str, Any]) -> None:
    kept = [name for name in answers if name.startswith("conversation&")]
    assert len(kept) == 2 * (NUM_ATTEMPTS // 3)
    assert answers["list&of=0:own&run=suite"]["matched"] == NUM_ATTEMPTS // 3


def test_hidden_questions_are_shown_only_when_asked_for(folder: Path, tmp_path: Path) -> None:
    """Not them, not their answers, and not the attempts, which repeat them."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for path in (copy / "attempts").glob("gpqa*"):
        path.write_text(path.read_text().replace("I try.", f"I read: {SECRET}"))
    hidden = {name: text for name, text in made(copy).items() if "gpqa" in name}
    assert "Question" not in json.dumps(hidden) and SECRET not in json.dumps(hidden)
    found = hidden["grid&run=copy&set=gpqa_diamond&step=0"]
    assert "--reveal" in found["notes"][0] and found["questions"][0]["id"].startswith("gpqa_diamond/")
    assert not [name for name in hidden if name.startswith("conversation&")]
    shown = json.dumps({name: text for name, text in made(copy, reveal=True).items() if "gpqa" in name})
    assert "Question 3 of gpqa_diamond" in shown and f"I read: {SECRET}" in shown and "--reveal" not in shown


def test_half_a_surrogate_pair_is_its_escape(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for path in (copy / "attempts").glob("*.jsonl"):
        path.write_text(path.read_text().replace("I try.", "I try \\ud83d."))
    assert "I try \\\\ud83d." in json.dumps(made(copy))


def test_the_page_stays_small_whatever_was_written(tmp_path: Path) -> None:
    text = '"' * 9_000
    folder = make_folder(
        tmp_path / "large",
        *(MadeSet(name=f"set{at}", num=14, k=2, text=text, calls=6) for at in range(3)),
        MadeSet(name="long", num=400, k=1, calls=0),
    )
    page = write_eval_report(folder).read_text()
    assert sum(path.stat().st_size for path in (folder / "attempts").iterdir()) > 4 * len(page)
    assert len(page) < 5_000_000 and "conversation&" in page, "some attempts are there"


def test_numbers_alone_make_a_page(folder: Path, tmp_path: Path) -> None:
    """The page of an evaluation without attempts, manifest and recipe."""
    (tmp_path / "results.json").write_bytes((folder / "results.json").read_bytes())
    told = made(tmp_path)
    where = f"run={tmp_path.name}"
    assert told[f"grid&{where}&set=aime24&step=0"]["notes"] == ["aime24.jsonl does not exist"]
    assert "avg@8, 30 questions" in told[f"evaluation&{where}&step=0"]["forest"]["screen"]
    (tmp_path / "manifest.json").write_text("torn")
    assert "manifest.json is damaged" in made(tmp_path)[f"evaluation&{where}&step=0"]["problem"]


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no finished evaluation"), ("{", "damaged"), ('{"sets": 3}', "damaged")]
)
def test_a_folder_without_numbers_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(ConfigError, match=said):
        write_eval_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_the_verb_writes_the_page_again(folder: Path, tmp_path: Path, capsys: Any) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "report.html").unlink(missing_ok=True)
    assert main(["report", str(copy), "--reveal"]) == 0
    assert capsys.readouterr().out.strip() == str(copy / "report.html")
    told = kept_in((copy / "report.html").read_text())["answers"]
    assert "of gpqa_diamond: what is" in json.dumps(told)
    (copy / "results.json").unlink()
    assert main(["report", str(copy)]) == 2
    assert "neither a run directory" in capsys.readouterr().err
