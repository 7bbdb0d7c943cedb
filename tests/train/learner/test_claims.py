"""Headers of model files that claim what cannot be: one error, before anything is built or allocated."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from rocstar.train.learner.checkpoint import load_progress
from rocstar.train.learner.claims import check_folder, check_gguf
from rocstar.train.learner.import_gguf import import_gguf
from rocstar.train.learner.model_io import load_model
from rocstar.train.recipe.errors import ConfigError

from ...needs import modules

HEAD = b"GGUF" + struct.pack("<I", 3)
KEY = struct.pack("<Q", 1) + b"a"


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": 1e30},
        {"text_config": {"num_hidden_layers": 10**9}},
        {"n_routed_experts": 10**9},
        {"encoder_layers": 10**400},
    ],
)
def test_a_configuration_that_no_model_has_is_refused(tmp_path: Path, config: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    with pytest.raises(ConfigError, match="a model has 0 to"):
        load_model(str(tmp_path), "float32")


@pytest.mark.parametrize(
    "text", [b"\xff", b"[" * 100_000, b"[]", b'{"num_hidden_layers": ' + b"9" * 5000 + b"}"]
)
def test_a_configuration_that_cannot_be_read_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        check_folder(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        HEAD,
        HEAD + struct.pack("<QQ", 1 << 60, 1 << 60),
        HEAD + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1 << 62) + b"a",
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQ", 9, 4, 1 << 60),
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000,
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<I", 77),
    ],
)
def test_a_gguf_file_of_a_stranger_is_refused(tmp_path: Path, content: bytes) -> None:
    modules("gguf")
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        import_gguf(str(path), tmp_path / "out")
    assert "\n" not in str(refused.value) and not (tmp_path / "out").exists()


def test_the_header_alone_tells_what_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(HEAD + struct.pack("<QQ", 2, 0) + bytes(30))
    with pytest.raises(ConfigError, match="2 tensors"):
        check_gguf(path)


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"progress": {"step": "1", "metrics_bytes": 0}}',
        b'{"progress": {"step": -1, "metrics_bytes": 0}}',
        b'{"progress": {"step": 1, "metrics_bytes": 0, "version": null}}',
    ],
)
def test_a_damaged_progress_is_one_error(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "progress.json").write_bytes(text)
    with pytest.raises(ConfigError, match="earlier checkpoint"):
        load_progress(tmp_path)
