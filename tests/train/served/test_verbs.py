"""`rocstar serve` and `rocstar chat` before anything is opened: what is meant, and mistakes of the user."""

import io
from pathlib import Path

import pytest

from rocstar.train.cli import main
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.run_directory import recipe_of


def checkpoint_of(run: Path, step: int) -> Path:
    folder = run / "checkpoints" / f"step_{step}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "COMPLETE").touch()
    return folder


def test_a_target_is_a_run_a_model_or_a_recipe(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, last = checkpoint_of(run, 2), checkpoint_of(run, 10)
    (run / "config.toml").write_text('[run]\nname = "mine"\n')
    assert recipe_of(str(run), None, []).model.path == str(last)
    assert recipe_of(str(first), None, ["--run.seed=5"]).run.seed == 5
    assert recipe_of(str(run), str(first), []).model.path == str(first)
    assert recipe_of("quickstart", str(last), []).model.path == str(last)
    assert load_recipe(run).run.name == "mine", "a run's folder is its config.toml"
    (last / "COMPLETE").unlink()
    (first / "COMPLETE").unlink()
    with pytest.raises(ConfigError, match="no complete checkpoint"):
        recipe_of(str(run), None, [])


@pytest.mark.parametrize("verb", ["serve", "chat"])
def test_the_folder_of_a_run_is_no_folder_of_what_is_served(
    verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    checkpoint_of(tmp_path, 2)
    (tmp_path / "config.toml").write_text('[run]\nname = "mine"\n')
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "trajectories").mkdir()
    before = sorted(tmp_path.rglob("*"))
    more = ["--prompt", "p"] if verb == "chat" else []
    assert main([verb, str(tmp_path), "--out", str(tmp_path), *more]) == 2
    assert "holds a run, whose records are of training" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_prompt_that_is_no_text_is_one_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xffb"), encoding="utf-8"))
    assert main(["chat", "http://127.0.0.1:1"]) == 2
    assert "standard input is not utf-8: invalid start byte; pipe text in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "asked"), [("", "/v1"), ("/", "/v1"), ("/v1", "/v1"), ("/v1/", "/v1"), ("/of/mine", "/of/mine")]
)
def test_an_endpoint_that_is_not_there_fails_the_answer(
    given: str, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", f"http://127.0.0.1:1{given}", "--prompt", "hello"]) == 1
    assert f"error: http://127.0.0.1:1{asked}: " in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["chat", "serve"])
def test_modules_of_a_run_are_named_before_they_are_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    run = tmp_path / "run"
    checkpoint_of(run, 1)
    (run / "own.py").write_text("raise RuntimeError('it ran')")
    text = '[run]\nname = "mine"\n[reward]\nkind = "own:grade"\n[[tools]]\nkind = "os:PathLike"\n'
    (run / "config.toml").write_text(text)
    arguments = ["--prompt", "p"] if verb == "chat" else ["--port", "0"]
    assert main([verb, str(run), *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    own = next(k for k, line in enumerate(lines) if "reward.kind = " in line)
    assert str(run / "own.py") in lines[own] and "tools.0.kind = 'os:PathLike'" in lines[own + 1]
    assert not any("it ran" in line for line in lines[: own + 1])
