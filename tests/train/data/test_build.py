"""A build gives the same bytes in any order and after any kill, and every row has one end."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.cli import main
from rocstar.train.data import build as build_module
from rocstar.train.data import row_table
from rocstar.train.data.build import build
from rocstar.train.data.build_config import load_build
from rocstar.train.data.funnel import REASONS, Funnel
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.tasks.data import load_tasks
from tests.fakes.json_lines import read_lines, write_lines

GARDEN = (
    "A gardener plants $12$ tulips along a straight path so that neighbouring bulbs stand $40$ centimetres "
    "apart. How long is the bed?"
)
FIRST = [
    {"id": "f1", "question": "What is $6 \\cdot 7$?", "answer": "42.0"},
    {"id": "f2", "question": "What is $1/3$ of $1$?", "answer": "\\frac{1}{3}"},
    {"id": "f3", "question": "What is $9^9^9$?", "answer": "1e99"},
    {"id": "f4", "question": "Prove that $1 < 2$.", "answer": "1"},
    {"id": "f5", "question": "In the diagram below, what is $x$?", "answer": 7},
    {"id": "f6", "question": "How many days has a week?", "answer": "7"},
    {"id": "f7", "question": "How many hours has a day?", "answer": "24", "lang": "de"},
    {"id": "f8", "question": f"Tell me: {GARDEN}", "answer": "480"},
    {"id": "f9", "question": "How many legs has a spider?", "answer": "8"},
    {"id": "f10", "prompt": "no question"},
    {"id": "f11", "question": "What is half a \ud83d dozen?", "answer": "6"},
    *({"id": f"n{k}", "question": f"What is ${k} + {k}$?", "answer": 2 * k} for k in range(8)),
]
SECOND = [
    {"id": "s1", "question": "what is 6 × 7", "answer": "42"},
    {"id": "s2", "question": "How many days has a week?", "answer": "8"},
    {"id": "s3", "question": "How many cents has a euro?", "answer": "\\boxed{100}"},
    {"id": "s4", "question": "How many cents has a euro?", "answer": "100 cents"},
]
CONFIG = """
kind = "tasks"
seed = 3

[[sources]]
name = "first"
source = "first.jsonl"
licence = "MIT"
without = ["lang"]
most = 6

[[sources]]
name = "second"
source = "second.jsonl"
revision = "0123456789abcdef0123456789abcdef01234567"
licence = "CC BY-NC 4.0"

[overlap]
against = ["set.jsonl"]

[difficulty]
rollouts = ["rollouts.jsonl"]
solved = 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A build's file with all that it reads; attempts solve the spider twice and 1 + 1 once of twice."""
    write_lines(tmp_path / "first.jsonl", FIRST)
    write_lines(tmp_path / "second.jsonl", SECOND)
    write_lines(tmp_path / "set.jsonl", [{"id": "q", "question": GARDEN}])
    (tmp_path / "build.toml").write_text(CONFIG)
    write_lines(tmp_path / "spider.jsonl", [{"question": "How many legs has a spider?", "answer": "8"}])
    spider = load_tasks(DataConfig(source="spider.jsonl"), base=tmp_path)[0].id
    outcomes = [{"reward": 1.0, "is_correct": True}] * 2
    records = [{"v": 1, "task": {"id": spider}, "outcome": outcome} for outcome in outcomes]
    write_lines(tmp_path / "rollouts.jsonl", records)
    return tmp_path


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def built(folder: Path, out: str) -> dict[str, bytes]:
    build(load_build(folder / "build.toml"), folder / out)
    return files(folder / out)


def test_every_row_has_one_end_with_its_evidence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    assert main(["data", "build", str(folder / "build.toml"), "--out", str(out), "--json"]) == 0
    funnel = json.loads(capsys.readouterr().out)
    assert json.loads((out / "funnel.json").read_text()) == funnel
    assert sorted(files(out)) == ["dropped.jsonl", "funnel.json", "tasks.jsonl"]
    dropped = {row["row"]: row for row in read_lines(out / "dropped.jsonl")}
    reasons = {name: row["reason"] for name, row in dropped.items() if row["reason"] != "not_drawn"}
    assert reasons == {
        **{"f2": "no_integer", "f3": "huge_integer", "f4": "proof", "f5": "figure", "f7": "not_selected"},
        **{"f6": "labels_disagree", "s2": "labels_disagree", "s1": "duplicate", "s4": "duplicate"},
        **{"f8": "overlap", "f9": "solved", "f10": "unreadable"},
    }
    assert dropped["s1"]["evidence"] == {"of": {"source": "first", "row": "f1"}}
    assert set(dropped["f6"]["evidence"]["labels"]) == {"7", "8"}
    assert dropped["f8"]["evidence"]["against"] == {"file": "set.jsonl", "id": "q"}
    assert dropped["f9"]["evidence"]["attempts"] == 2
    assert dropped["f2"]["evidence"] == {"answer": "\\frac{1}{3}"}
    kept = read_lines(out / "tasks.jsonl")
    ends = Counter(row["row"] for row in dropped.values()) + Counter(row["provenance"]["row"] for row in kept)
    assert ends == Counter(row["id"] for row in FIRST + SECOND)
    assert funnel["read"] == {"first": len(FIRST), "second": len(SECOND)}
    assert funnel["kept"] == {"first": 6, "second": 1}
    assert funnel["dropped"]["not_drawn"] == {"first": 4}


def test_a_recipe_reads_what_is_written_under_the_same_ids(folder: Path) -> None:
    built(folder, "out")
    rows = read_lines(folder / "out" / "tasks.jsonl")
    tasks = load_tasks(DataConfig(source="tasks.jsonl"), base=folder / "out")
    assert [(task.id, task.question, task.answer) for task in tasks] == [
        (row["id"], row["question"], row["answer"]) for row in rows
    ]
    (euro,) = (task for task in tasks if task.source == "second")
    origin = euro.meta["provenance"]
    assert origin["licence"] == "CC BY-NC 4.0" and origin["revision"].startswith("0123") and origin["row"] == "s3"
    assert origin["decided"]["answer_as_written"] == "\\boxed{100}" and origin["files"].startswith("sha256:")
    assert origin["decided"]["copies"]["rows"] == 1


def test_the_order_of_rows_does_not_matter(folder: Path) -> None:
    def rows(name: str) -> dict[str, list[dict[str, Any]]]:
        built(folder, name)
        found = {file: read_lines(folder / name / file) for file in ("tasks.jsonl", "dropped.jsonl")}
        for row in found["tasks.jsonl"]:
            del row["provenance"]["files"]  # the file's own hash is that of its order, too
        return found

    first = rows("one")
    for name, given in (("first", FIRST), ("second", SECOND)):
        write_lines(folder / f"{name}.jsonl", given[::-1])
    assert rows("other") == first


def test_a_killed_build_goes_on_to_the_same_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at each commit in turn, and then again at the next ones, until it is through."""
    monkeypatch.setattr(build_module, "COMMITTED_ROWS", 3)
    monkeypatch.setattr(row_table, "_BATCH", 2)
    whole = built(folder, "whole")
    real, left = row_table.RowTable.transaction, [0]

    def transaction(table: row_table.RowTable) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(table)

    monkeypatch.setattr(row_table.RowTable, "transaction", transaction)
    kills = 0
    for every in (1, 2, 5):
        out = f"every_{every}"
        for _ in range(30):
            left[0] = every
            try:
                found = built(folder, out)
                break
            except KeyboardInterrupt:
                kills += 1
                assert not (folder / out / "funnel.json").exists()
        else:
            pytest.fail("it goes on for ever")
        assert found == whole
    assert kills > 20


def test_what_a_build_of_other_rows_left_is_begun_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> Iterator[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(row_table.RowTable, "resolve_duplicates", stop)
    with pytest.raises(KeyboardInterrupt):
        built(folder, "out")
    monkeypatch.undo()
    assert (folder / "out" / "work.db").exists()
    write_lines(folder / "second.jsonl", SECOND[2:])
    assert built(folder, "out") == built(folder, "fresh")


def test_a_finished_build_is_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "build", str(folder / "build.toml"), "--out", str(folder / "out")]
    assert main(command) == 0 and "kept" in capsys.readouterr().out
    before = files(folder / "out")
    assert main(command) == 2 and "--force" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0 and files(folder / "out") == before
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    assert main([*command[:-1], str(folder / "mine")]) == 2 and "not empty" in capsys.readouterr().err


def test_what_cannot_be_used_commercially_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    assert main(["data", "build", str(folder / "build.toml"), "--out", str(out), "--commercial"]) == 0
    assert "forbids commercial use" in capsys.readouterr().out
    assert {row["data_source"] for row in read_lines(out / "tasks.jsonl")} == {"first"}
    only = CONFIG.replace('"MIT"', '"my own"')
    (folder / "build.toml").write_text(only)
    assert main(["data", "build", str(folder / "build.toml"), "--out", str(folder / "o"), "--commercial"]) == 2
    assert "leaves no source" in capsys.readouterr().err and not (folder / "o").exists()


def test_rows_carry_licences_of_their_own(folder: Path) -> None:
    rows = [{**row, "of": "cc-by-nc-4.0" if k % 2 else "mit"} for k, row in enumerate(FIRST)]
    write_lines(folder / "first.jsonl", rows)
    (folder / "build.toml").write_text(CONFIG.replace('"MIT"', '"other"\nlicence_field = "of"'))
    funnel = build(load_build(folder / "build.toml", commercial=True), folder / "out", commercial=True)
    assert funnel.dropped["licence"] == {"first": 8}
    licences = {row["provenance"]["licence"] for row in read_lines(folder / "out" / "tasks.jsonl")}
    assert licences == {"mit"}


def test_a_build_of_a_build_keeps_what_was_decided(folder: Path) -> None:
    built(folder, "one")
    again = """
    kind = "tasks"
    [[sources]]
    name = "stage3"
    source = "one/tasks.jsonl"
    licence = "see the row"
    licence_field = "provenance.licence"
    """
    (folder / "build.toml").write_text(again)
    built(folder, "two")
    one, two = (read_lines(folder / name / "tasks.jsonl") for name in ("one", "two"))
    assert [row["id"] for row in one] == [row["id"] for row in two]
    for before, after in zip(one, two, strict=True):
        assert after["provenance"]["decided"]["earlier"] == before["provenance"]
        assert after["provenance"]["licence"] == before["provenance"]["licence"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"text": "no question"}], "none of its 1 rows can be read: the row has no field 'question'"),
        ([], "it is empty"),
        ([{"question": "Prove that 1 < 2.", "answer": 1}], "nothing is left of 1 rows"),
    ],
)
def test_a_build_that_gives_nothing_is_a_mistake(folder: Path, rows: list[dict[str, Any]], words: str) -> None:
    write_lines(folder / "only.jsonl", rows)
    (folder / "build.toml").write_text(
        'kind = "tasks"\n[[sources]]\nname = "a"\nsource = "only.jsonl"\nlicence = "mit"\n'
    )
    with pytest.raises(Exception, match=words):
        built(folder, "out")
    assert not (folder / "out").exists()


def test_a_full_disk_is_one_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(row_table.RowTable, "add", full)
    assert main(["data", "build", str(folder / "build.toml"), "--out", str(folder / "out")]) == 2
    assert "disk is full" in capsys.readouterr().err


def test_the_funnel_is_shown_and_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built(folder, "out")
    drawing = folder / "funnel.svg"
    assert main(["data", "show", str(folder / "out"), "--svg", str(drawing)]) == 0
    text = capsys.readouterr().out
    assert f"{len(FIRST) + len(SECOND):,}" in text and "labels_disagree" in text and "CC BY-NC 4.0" in text
    assert drawing.read_text().startswith("<svg") and "not_drawn" in drawing.read_text()
    assert main(["data", "show", str(folder / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == {"first": 6, "second": 1}
    assert main(["data", "show", str(folder)]) == 2 and "not a finished build" in capsys.readouterr().err


def test_a_funnel_whose_sums_do_not_match_is_refused() -> None:
    with pytest.raises(ValueError, match="3 rows read, 1 kept and 1 dropped"):
        Funnel(kind="tasks", sources=[], read={"a": 3}, kept={"a": 1}, dropped={"proof": {"a": 1}})
    assert all(REASONS.values())
