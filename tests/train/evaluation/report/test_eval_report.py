"""report.html of an evaluation: the content of the folder without hidden texts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.cli import main
from rocstar.train.evaluation.report.eval_report import write_eval_report
from rocstar.train.recipe.errors import ConfigError

from ..eval_folders import MadeSet, make_folder

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


def made(folder: Path, *, reveal: bool = False) -> str:
    return write_eval_report(folder, reveal=reveal).read_text()


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return made(folder)


def test_the_page_says_what_was_evaluated_and_how(html: str, tags_of: Any) -> None:
    text = tags_of(html).text
    for told in (
        "models/tiny-135m",
        "weights abababababab, tokenizer cdcdcdcdcdcd, template efefefefefef",
        "embedded, float32",
        "confined: landlock, rlimits, seccomp",
        "commit 0123456789ab",
        "Prompted as agent: 8 samples at temperature 0.6, at most 30,000 tokens and 30 turns.",
        "made/up at 000000000000, the published rows, digest 121212121212",
        "rocstar eval models/tiny-135m --set aime24",
    ):
        assert told in text, told


def test_the_numbers_are_those_of_the_results(html: str, folder: Path, tags_of: Any) -> None:
    text, results = tags_of(html).text, json.loads((folder / "results.json").read_text())
    for one in results["sets"].values():
        for scores in (one["failed_as_wrong"], one.get("failed_left_out", one)):
            low, high = scores["interval"]
            assert f"{scores['avg']:.3f} [{low:.3f}, {high:.3f}]" in text
    own = results["sets"]["own"]
    assert f"{own['failed']} ({own['failed']} sandbox_lost)" in text and own["failed"]
    assert f"2 of 60{own['contamination']['avg_clean']:.3f}" in text


def test_every_question_has_a_row_and_every_attempt_a_cell(html: str, tags_of: Any) -> None:
    cells = [
        a["title"]
        for tag, a in tags_of(html).found
        if tag in ("a", "i") and str(a.get("title")).startswith("attempt ")
    ]
    assert len(cells) == 30 * 8 + 60 * 4 + 12 * 4
    kinds = {str(title).split()[2].rstrip(",") for title in cells}
    assert kinds == {"correct", "wrong", "truncated", "failed"}
    assert html.count('<span class="id">') == 102


def test_every_link_leads_to_something_on_the_page(html: str, tags_of: Any) -> None:
    found = tags_of(html).found
    links = [str(a["href"]) for tag, a in found if tag == "a"]
    ids = [a["id"] for _, a in found if "id" in a]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links} <= set(ids) and all(link.startswith("#") for link in links)
    assert sum(str(one).startswith("a") for one in ids) == html.count('<details class="trajectory') == 26


def test_the_page_asks_for_nothing_from_outside(html: str, tags_of: Any) -> None:
    tags = tags_of(html)
    assert not [a for _, attributes in tags.found for a in attributes if a in ("src", "srcset", "style")]
    assert "@import" not in html and "url(" not in html and "http" not in re.sub(r"http-equiv|w3\.org", "", (
        html.replace("http://www.w3.org", "")
    ))  # fmt: skip
    policy = next(a["content"] for tag, a in tags.found if tag == "meta" and "http-equiv" in a)
    assert str(policy).startswith("default-src 'none'") and tags.count("script") == 1


def test_hidden_questions_are_shown_only_when_asked_for(folder: Path, tmp_path: Path) -> None:
    """Not them, not their answers, and not the attempts, which repeat them."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for path in (copy / "attempts").glob("gpqa*"):
        path.write_text(path.read_text().replace("I try.", f"I read: {SECRET}"))
    hidden = made(copy)
    assert SECRET not in hidden.replace(f"of own: {SECRET}", "").replace(f"of aime24: {SECRET}", "")
    assert "Question 3 of gpqa_diamond" not in hidden and "gpqa_diamond/3" in hidden
    assert "--reveal" in hidden and 'id="a2-' not in hidden
    shown = made(copy, reveal=True)
    assert "Question 3 of gpqa_diamond" in shown and f"I read: {SECRET}" in shown
    assert 'id="a2-' in shown and "--reveal" not in shown


def test_nothing_that_a_model_or_a_set_wrote_can_act(tmp_path: Path, tags_of: Any, attack: str) -> None:
    folder = make_folder(tmp_path / "hostile", MadeSet(name="own", num=6, k=3, text=attack, failing=0.2))
    path = folder / "attempts" / "own.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        record["task"]["id"] += attack
        record["finish_reason"] = "answered"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    results = (folder / "results.json").read_text().replace('"own": {', f"{json.dumps('own')}: {{")
    told = json.loads(results)
    told["sets"]["own"] |= {
        "failures": {attack: 1},
        "measures": {attack: 0.5},
        "contamination": {"rule": attack, "num_contaminated": 1},
    }
    (folder / "results.json").write_text(json.dumps(told))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["starts"][0] |= {"command": [attack], "commit": attack, "started": attack}
    manifest["starts"][0]["evaluation"]["settings"]["sampling"]["own"]["temperature"] = attack
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "config.toml").write_text(f"[model]\npath = {json.dumps(attack)}\n")
    tags = tags_of(made(folder))
    assert tags.count("script") == 1 and tags.count("img") == 0
    assert not [a for _, attributes in tags.found for a in attributes if a.startswith("on")]
    assert tags.text.count(attack) > 20, "inert, and still readable"


def test_half_a_surrogate_pair_is_shown_as_its_escape(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for path in (copy / "attempts").glob("*.jsonl"):
        path.write_text(path.read_text().replace("I try.", "I try \\ud83d."))
    assert "I try \\ud83d." in made(copy)


def test_the_page_stays_small_whatever_was_written(tmp_path: Path) -> None:
    """Long texts, many turns, and characters that escaping makes five of."""
    text = '"' * 9_000
    folder = make_folder(
        tmp_path / "large",
        *(MadeSet(name=f"set{at}", num=14, k=2, text=text, calls=6) for at in range(3)),
        MadeSet(name="long", num=400, k=1, calls=0),
    )
    page = made(folder)
    assert sum(path.stat().st_size for path in (folder / "attempts").iterdir()) > 4 * len(page)
    assert len(page) < 5_000_000
    assert "The 200 hardest of 400 questions" in page
    assert 'href="#a0-' in page, "some attempts are there"


def test_the_same_folder_gives_the_same_page(folder: Path, html: str) -> None:
    assert made(folder) == html and not list(folder.glob("*.partial"))


def test_numbers_alone_make_a_page(folder: Path, tmp_path: Path, tags_of: Any) -> None:
    """The page of an evaluation without attempts, manifest and recipe."""
    (tmp_path / "results.json").write_bytes((folder / "results.json").read_bytes())
    text = tags_of(made(tmp_path)).text
    assert "aime24.jsonl does not exist" in text and "avg@8, 30 questions" in text
    (tmp_path / "manifest.json").write_text("torn")
    assert "manifest.json is damaged" in tags_of(made(tmp_path)).text


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no finished evaluation"), ("{", "damaged"), ('{"sets": 3}', "damaged")]
)
def test_a_folder_without_numbers_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(ConfigError, match=said):
        write_eval_report(tmp_path, reveal=False)
    assert not (tmp_path / "report.html").exists()


def test_the_verb_writes_the_page_again(folder: Path, tmp_path: Path, capsys: Any) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "report.html").unlink(missing_ok=True)
    assert main(["report", str(copy), "--reveal"]) == 0
    assert capsys.readouterr().out.strip() == str(copy / "report.html")
    assert "Question 3 of gpqa_diamond" in (copy / "report.html").read_text()
    (copy / "results.json").unlink()
    assert main(["report", str(copy)]) == 2
    assert "neither a run directory" in capsys.readouterr().err


def test_a_page_is_made_without_torch(folder: Path) -> None:
    program = (
        "import sys; from rocstar.train.evaluation.report.eval_report import write_eval_report as w; "
        f"from pathlib import Path; w(Path({str(folder)!r}), reveal=False); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "False", done.stderr
