"""`model.date`: the day of a run's start where a template shows the date, kept by all that reads the run."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocstar.engine.chat.boundaries import load_template
from rocstar.train.cli import main
from rocstar.train.compose import start as compose_model
from rocstar.train.learner.scratch import train_tokenizer
from rocstar.train.learner.world import World
from rocstar.train.plan.prompts import dated
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import parse_recipe, to_toml
from rocstar.train.serving import nodes
from rocstar.train.serving.nodes import Start
from rocstar.train.tasks.chat_format import with_date

START, LATER = datetime.date(2026, 11, 26), datetime.date(2026, 12, 24)
DATED = "{{- strftime_now('%d %b %Y') -}}" + load_template("compact", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a template that shows the date."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dated.jinja").write_text(DATED)
    return tmp_path


def recipe(template: str = "dated.jinja", **sections: Any) -> Recipe:
    return parse_recipe({"model": {"template": template}} | sections, where="test")


def model_at(folder: Path, template: str) -> Path:
    """Save the tokenizer of a model with this template."""
    folder.mkdir(parents=True)
    train_tokenizer(["Toss 12"], vocab_size=300, template=template).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 300}))
    return folder


def run_at(folder: Path, date: str) -> Path:
    """A run's folder with its recipe."""
    folder.mkdir()
    (folder / "config.toml").write_text(to_toml(with_date(recipe(), date)))
    return folder


def test_a_run_takes_the_day_of_its_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = dated(recipe(), today=lambda: START)
    assert found == with_date(recipe(), "2026-11-26") and 'date = "2026-11-26"' in to_toml(found)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("model.date: the chat template shows the date; 2026-11-26 is used (today's)")
    monkeypatch.setenv("RANK", "1")
    assert dated(recipe(), today=lambda: START) == found
    assert capsys.readouterr().err == "", "rank 0 alone prints it"


@pytest.mark.parametrize(
    "given",
    [
        recipe("compact"),
        with_date(recipe(), "2020-02-02"),
        recipe("nowhere.jinja"),
        recipe("compact", sft={"template": "dated.jinja"}),
    ],
    ids=["shows no date", "names a day", "no template", "no cold start"],
)
def test_nothing_else_changes(folder: Path, capsys: pytest.CaptureFixture[str], given: Recipe) -> None:
    assert dated(given, today=lambda: START) is given
    assert capsys.readouterr().err == ""


def test_a_template_of_the_model_or_of_the_conversations_may_show_it(folder: Path) -> None:
    cold_start = {"template": "dated.jinja", "steps": 1, "data": "chat.jsonl"}
    assert dated(recipe("compact", sft=cold_start), today=lambda: START).model.date == "2026-11-26"
    own, plain = model_at(folder / "own", DATED), model_at(folder / "plain", load_template("compact", None))
    for model, date in ((own, "2026-11-26"), (plain, "")):
        assert dated(recipe("model"), str(model), today=lambda: START).model.date == date


def test_a_resumed_run_keeps_its_day(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_at(folder / "run", "2026-11-26")
    assert dated(recipe(), former=run, today=lambda: LATER).model.date == "2026-11-26"
    assert f"2026-11-26 is used (as in {str(run / 'config.toml')!r})" in capsys.readouterr().err
    assert dated(recipe(), former=folder / "new", today=lambda: LATER).model.date == "2026-12-24"
    saved = model_at(run / "checkpoints" / "step_3", DATED)
    assert dated(recipe("model"), str(saved), today=lambda: LATER).model.date == "2026-11-26"


def test_a_dry_run_shows_it_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tasks.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    said = [{"role": role, "content": "<answer>\\boxed{2}</answer>"} for role in ("user", "assistant")]
    (folder / "chat.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    stage = {"steps": 1, "max_response_tokens": 100, "max_turns": 2, "data": {"source": "tasks.jsonl"}}
    given = recipe(sft={"steps": 1, "data": "chat.jsonl"}, stages=[stage])
    (folder / "recipe.toml").write_text(to_toml(given))
    before = set(folder.rglob("*"))
    days = [datetime.date.today()]
    assert main(["train", "recipe.toml", "--dry-run", "--show-recipe"]) == 0
    printed, days = capsys.readouterr(), [*days, datetime.date.today()]  # midnight may lie between
    assert any(f'date = "{day}"' in printed.out for day in days)
    assert printed.err.count("the chat template shows the date") == 1
    assert set(folder.rglob("*")) == before


# ---- several ranks ----


def test_rank_0_sends_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose_model, "load_learner", lambda *_: None)
    monkeypatch.setattr(compose_model, "LearnerTeam", lambda *_: None)
    sent = list[Start]()
    given, world = with_date(recipe(), "2026-11-26"), World(rank=0, size=2)
    setup = SimpleNamespace(recipe=given, world=world, thread=None, send=sent.append)
    compose_model.load_team(cast(Any, setup), "model", "secret")
    assert sent == [Start(path="model", token="secret", date="2026-11-26")]


@pytest.mark.parametrize("only_serves", [False, True])
def test_other_nodes_use_the_date_of_rank_0(monkeypatch: pytest.MonkeyPatch, only_serves: bool) -> None:
    """Their clocks showed the next day when they started."""
    started = with_date(recipe(), "2026-11-27")
    told = Start(path="model", token="secret", date="2026-11-26")
    world = cast(Any, SimpleNamespace(broadcast=lambda _: told, local_rank=0))
    used: list[str] = []

    def note(given: Recipe, *_: Sequence[Any]) -> None:
        used.append(given.model.date)

    monkeypatch.setattr(nodes, "load_learner", lambda *_: None)
    monkeypatch.setattr(nodes, "LearnerTeam", lambda *_: None)
    for name in ("_serve", "_serve_alone"):
        monkeypatch.setattr(nodes, name, note)
    monkeypatch.setattr(nodes, "_wait_for_stop", lambda _: None)
    (nodes.serve_alone if only_serves else nodes.follow)(started, world)
    assert used == ["2026-11-26"]
