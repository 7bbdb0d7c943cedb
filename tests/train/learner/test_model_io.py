"""Models from disk: what is missing is named before anything is loaded."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from rocstar.engine.progress.progress import ProgressBoard
from rocstar.train.evaluation.saved_model import TokenScorer, with_model
from rocstar.train.learner import hub, model_io
from rocstar.train.learner.claims import CheckedFolder
from rocstar.train.learner.gather import SINGLE
from rocstar.train.learner.model_io import (
    check_can_load,
    check_model_path,
    checked_folder,
    load_max_positions,
    load_model,
    load_tokenizer,
)
from rocstar.train.learner.scratch import build_model, train_tokenizer
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError

from ...fakes.tiny import SCRATCH


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tokenizer: PreTrainedTokenizerBase = train_tokenizer(["a b"], vocab_size=300, template="x")
    build_model(SCRATCH, len(tokenizer), seed=0).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_whole_directory_loads(directory: Path) -> None:
    check_model_path(str(directory))
    assert load_max_positions(str(directory)) == 1024
    assert load_tokenizer(str(directory)).chat_template == "x"
    assert load_model(str(directory), "float32").dtype == torch.float32
    assert load_model(str(directory), "bfloat16").dtype == torch.bfloat16


def test_who_watches_sees_what_is_loaded_from_where(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board, seen = ProgressBoard(), []

    def watched(path: str) -> CheckedFolder:
        seen.extend(work.what for work in board.works)
        return checked_folder(path)

    monkeypatch.setattr(model_io, "checked_folder", watched)
    with board.installed():
        load_model(str(directory), "float32")
        with pytest.raises(ConfigError):
            load_model("nobody/nothing", "float32")
        with (directory / SINGLE).open("wb") as file:
            file.truncate(3_000_000_000)  # of nothing: it takes no room
        with pytest.raises(ConfigError):
            load_model(str(directory), "float32")
    assert seen == [
        f"loading the model in {directory}",
        "loading the model nobody/nothing from the hub, or this machine's cache of it",
        f"loading the model in {directory} (3 GB)",
    ]
    assert not board.works


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_lie_where_torch_would_put_them(directory: Path, dtype: Any) -> None:
    """Not in the file, whose header gives them an odd address: products would round otherwise."""
    path = directory / "model.safetensors"
    kind = getattr(torch, dtype)
    weights = {name: weight.to(kind, copy=True) for name, weight in load_file(path).items()}
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"dtype": dtype}))
    for size in range(0, 64, 8):  # of the header, whatever else is in it
        save_file(weights, path, metadata={"format": "pt", "more": "x" * size})
        model = load_model(str(directory), dtype)
        assert {parameter.data_ptr() % 64 for parameter in model.parameters()} == {0}
    any_model: Any = model
    assert any_model.lm_head.weight is any_model.model.embed_tokens.weight, "and a tied head stays tied"


@pytest.mark.parametrize(
    ("missing", "words"), [("config.json", "no config.json"), ("tokenizer.json", "no tokenizer; copy tokenizer.json")]
)
def test_what_is_missing_is_named(directory: Path, missing: str, words: str) -> None:
    (directory / missing).unlink()
    with pytest.raises(ConfigError, match=words):
        check_model_path(str(directory))


@pytest.mark.parametrize("path", ["./gone", "/gone", "~/gone", "a/b/c", "/mine/model"])
def test_a_local_path_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    error = f"{path}' does not exist" + ", but 'model' does in the current" * path.endswith("model")
    with pytest.raises(ConfigError, match=error):
        check_model_path(path)


def test_a_hub_name_is_left_to_loading() -> None:
    check_model_path("nobody/nothing")
    for load in (load_tokenizer, load_max_positions, lambda name: load_model(name, "float32")):
        with pytest.raises(ConfigError, match=r"nobody/nothing.*; no folder of that name is here, and the"):
            load("nobody/nothing")


@pytest.mark.parametrize(("rows", "is_refused"), [(299, True), (300, False), (512, False)])
def test_every_token_needs_a_row_of_the_head(tmp_path: Path, rows: int, is_refused: bool) -> None:
    """A head padded beyond the tokenizer is usual; one too small is another model's."""
    tokenizer = train_tokenizer(["print(1)"], vocab_size=300, template="{{ messages }}")
    tokenizer.save_pretrained(tmp_path)
    rows += len(tokenizer) - 300
    build_model(SCRATCH, rows, seed=0).config.save_pretrained(tmp_path)
    error = rf"has id {len(tokenizer) - 1}, the model only {rows} rows; take"
    with pytest.raises(ConfigError, match=error) if is_refused else contextlib.nullcontext():
        load_tokenizer(str(tmp_path))


def test_a_file_and_a_run_are_told_from_a_model(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a run; give one of its checkpoints"):
        check_model_path(str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="file' is a file; give a Hugging Face directory"):
        check_model_path(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (False, "the hub shows no such model to this user; give a Hugging Face directory"),
        (hub.Unreachable("no network"), r"the hub cannot be asked \(no network\); give a Hugging"),
    ],
)
def test_a_name_that_nobody_has_is_asked_for_once(
    answer: bool | hub.Unreachable, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And transformers, which asks six times and waits longer each time, never."""
    asked: list[str] = []

    def exists(name: str, kind: str) -> bool:
        asked.append(f"{kind}/{name}")
        if isinstance(answer, bool):
            return answer
        raise answer

    monkeypatch.setattr(hub, "exists", exists)
    for loader in (model_io.AutoConfig, model_io.AutoTokenizer, model_io.AutoModelForCausalLM):
        monkeypatch.setattr(loader, "from_pretrained", lambda *_, **__: pytest.fail("it was loaded"))
    for ask in (check_can_load, lambda name: TokenScorer(name, threads=1), lambda name: with_model(Recipe(), name)):
        asked.clear()
        with pytest.raises(ConfigError, match=f"nobody/nothing.*{words}"):
            ask("nobody/nothing")
        assert asked == ["models/nobody/nothing"]
