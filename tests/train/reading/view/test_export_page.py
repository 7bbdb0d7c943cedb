"""The page as a file: it answers what a server would, has no more than its room, and asks for nothing."""

import base64
import json
import re
from hashlib import sha256
from pathlib import Path

import pytest

from rocstar.train.cli import main
from rocstar.train.reading.view import export_page as export_page_module
from rocstar.train.reading.view.document import bundle_scripts, encode_json, page_files
from rocstar.train.reading.view.export_page import MOST, export_page
from rocstar.train.reading.view.reader import NothingThereError, RunReader
from rocstar.train.reading.view.viewed_run import STEPS, RunIndex

from ...evaluation.eval_folders import MadeSet, make_folder
from .view_runs import kept_in, make_view_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with an evaluation."""
    made = make_view_run(tmp_path_factory.mktemp("export") / "made")
    make_folder(made / "evaluations" / "step_1", MadeSet(name="puzzles", num=3, k=2))
    return made


def reader_of(run: Path) -> RunReader:
    return RunReader(RunIndex([run]).runs, reveal=False)


def test_a_page_answers_what_a_server_would(run: Path) -> None:
    reader = reader_of(run)
    told = kept_in(export_page(reader, "made", STEPS, reader.sample("made", STEPS, MOST), made="today"))
    answers = told["answers"]
    rows = answers["list&run=made"]["rows"]
    assert len(rows) == 18 and told["left_out"] == 0, "all but the hidden ones"
    for row in rows:
        where = f"file={row['file']}&row={row['row']}&run=made"
        asked = reader.conversation("made", STEPS, row["file"], row["row"])
        assert answers[f"conversation&{where}"] == json.loads(encode_json(asked))
        exact = reader.tokens("made", STEPS, row["file"], row["row"], start=0, stop=4096)
        shown = answers[f"tokens&file={row['file']}&from=0&row={row['row']}&run=made"]
        assert shown["ids"] == exact["ids"] and shown["logprobs"] == [
            p if p is None else pytest.approx(p, rel=1e-3) for p in exact["logprobs"]
        ]
        assert f"strip&{where}" in answers
        group = answers[f"group&run=made&step={row['step']}&task={row['task']}"]
        assert row in [{name: one[name] for name in row} for one in group["siblings"]]
    assert {"run&run=made", "runs", "groups&run=made", "families&run=made", "alarms&run=made"} < set(answers)
    assert {"evaluation&run=made&step=1", "grid&run=made&set=puzzles&step=1"} < set(answers)


def test_a_page_allows_its_own_script_and_nothing_else(run: Path) -> None:
    page = export_page(reader_of(run), "made", STEPS, [("step_000001", 0)], made="today")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    assert policy is not None and policy[1] == (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    )
    markup = page.replace(script, "")
    assert set(re.findall(r'\b(?:src|href)="([^"]*)"', markup)) == {"data:,", "#main"}


def size_of(page: str) -> int:
    """Characters of its answers."""
    return sum(map(len, re.findall(r'": "([\w+/=]{20,})"', page)))


@pytest.mark.parametrize("share", [0.7, 0.3])
def test_what_has_no_room_is_left_out_and_counted(run: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    reader = reader_of(run)
    places = reader.sample("made", STEPS, MOST)
    room = int(share * size_of(export_page(reader, "made", STEPS, places, made="today")))
    monkeypatch.setattr(export_page_module, "ROOM", room)
    page = export_page(reader, "made", STEPS, places, made="today")
    told = kept_in(page)
    kept = [asked.partition("&")[0] for asked in told["answers"]]
    assert room / 2 < size_of(page) <= room
    assert kept.count("conversation") + told["left_out"] == len(places)
    assert kept.count("tokens") < len(places), "tokens are the first to go"
    assert (told["left_out"] > 0) == (share == 0.3)


def test_hidden_ones_and_more_than_a_page_takes_are_refused(run: Path) -> None:
    reader = reader_of(run)
    told = kept_in(export_page(reader, "made", STEPS, [("step_000001", 0), ("step_000001", 9)], made="today"))
    assert "conversation&file=step_000001&row=9&run=made" not in told["answers"]
    assert "hidden question" not in json.dumps(told)
    for places in ([], [("step_000001", 0)] * (MOST + 1)):
        with pytest.raises(NothingThereError, match="choose 1 to 50"):
            export_page(reader, "made", STEPS, places, made="today")


def test_the_command_writes_one_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["view", str(run), "--export", "made.html"]) == 0
    assert "made.html: 0." in capsys.readouterr().out
    page = (tmp_path / "made.html").read_text(encoding="utf-8")
    assert kept_in(page)["start"] == "#/run?run=made"
    assert main(["view", str(run / "evaluations" / "step_1"), "--export", "scores.html"]) == 0
    told = kept_in((tmp_path / "scores.html").read_text(encoding="utf-8"))
    assert any(asked.startswith("conversation&") and "of=0:puzzles" in asked for asked in told["answers"])
    for arguments, words in (
        ([str(run), "--export", "made.txt"], "ends in .html"),
        ([str(run), str(run / "evaluations" / "step_1"), "--export", "both.html"], "these are 2"),
    ):
        assert main(["view", *arguments]) == 2
        assert words in capsys.readouterr().err


def test_every_script_of_the_page_is_in_the_bundle() -> None:
    files = page_files()
    script = bundle_scripts(files, "app.js")
    assert all(f'modules["{name}"] =' in script for name in files if name.endswith(".js"))
    assert not re.search(r"^\s*(import|export)\b", script, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("modules", "why"),
    [
        ({"a.js": 'import { x } from "./b.js";'}, "a.js -> b.js"),
        ({"a.js": 'import { x } from "./a.js";'}, "a.js -> a.js"),
        ({"a.js": 'import x from "./b.js";'}, "cannot be brought"),
        ({"a.js": "export default 1;"}, "cannot be brought"),
        ({"a.js": 'const end = "</script>";'}, "cannot be brought"),
    ],
)
def test_what_cannot_be_bundled_is_named(modules: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        bundle_scripts(modules, "a.js")
