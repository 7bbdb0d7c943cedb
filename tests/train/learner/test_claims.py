"""A model folder or a GGUF file that contradicts itself: one error with names, the same from each loader."""

from __future__ import annotations

import errno
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from rocstar.train.learner.checkpoint import load_progress
from rocstar.train.learner.claims import check_folder, read_config
from rocstar.train.learner.export.export import export
from rocstar.train.learner.export.source import find_source
from rocstar.train.learner.gather import INDEX, SINGLE
from rocstar.train.learner.import_gguf import import_gguf
from rocstar.train.learner.model_io import checked_folder, load_model, load_tokenizer
from rocstar.train.learner.scratch import train_tokenizer
from rocstar.train.learner.sharding import load_shards
from rocstar.train.recipe.errors import ConfigError

from ...fakes.gguf_llama import write_gguf
from ...fakes.tiny import SIZES as TINY
from ...needs import modules

SIZES = TINY | {"vocab_size": 300}
LOST = "model.layers.1.self_attn.q_proj.weight"
EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
Change = Callable[[Path], object]


def saved(folder: Path, *, tied: bool = True, shards: int = 1, **fields: Any) -> Path:
    """A folder of a small Qwen3 and its tokenizer, as `save_pretrained` writes it."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES | fields, tie_word_embeddings=tied))
    model.save_pretrained(folder, max_shard_size="40KB" if shards > 1 else "1GB")
    train_tokenizer(["a b"], vocab_size=300, template="x").save_pretrained(folder)
    return folder


def edited(file: str, **changes: Any) -> Change:
    """Change fields of a JSON file; those that become `del` go."""

    def change(folder: Path) -> None:
        path = folder / file
        told = json.loads(path.read_text()) if path.is_file() else {}
        told |= changes
        path.write_text(json.dumps({name: value for name, value in told.items() if value != "del"}))

    return change


def config(**changes: Any) -> Change:
    return edited("config.json", **changes)


def with_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    """Change the tensors of a model in one file."""

    def changed(folder: Path) -> None:
        weights = load_file(folder / SINGLE)
        change(weights)
        save_file(weights, folder / SINGLE, metadata={"format": "pt"})

    return changed


def weights(**named: torch.Tensor) -> Change:
    return with_weights(lambda found: found.update({n.replace("__", "."): w for n, w in named.items()}))


def rope(**fields: Any) -> Change:
    return config(rope_parameters="del", rope_theta=1e4, rope_scaling=fields)


def drop(name: str) -> Change:
    return with_weights(lambda found: found.pop(name))


def index_of(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / INDEX
    told = json.loads(path.read_text())
    change(told["weight_map"])
    path.write_text(json.dumps(told))


def shard_of(folder: Path, name: str) -> Path:
    return folder / str(json.loads((folder / INDEX).read_text())["weight_map"][name])


def without_in_shard(folder: Path) -> None:
    path = shard_of(folder, LOST)
    save_file({n: w for n, w in load_file(path).items() if n != LOST}, path)


def twice_in_shards(folder: Path) -> None:
    path = next(path for path in sorted(folder.glob("*.safetensors")) if path != shard_of(folder, LOST))
    save_file({**load_file(path), LOST: torch.ones(32, 32)}, path)


def cut(folder: Path) -> None:
    path = folder / SINGLE
    path.write_bytes(path.read_bytes()[:-100])


def pickled(folder: Path) -> None:
    (folder / SINGLE).rename(folder / "pytorch_model.bin")


WRONG: dict[str, tuple[Change, str]] = {
    "missing": (drop(LOST), rf"asks for {LOST}, which no file has"),
    "surplus bias": (weights(model__layers__1__self_attn__q_proj__bias=torch.ones(32)), "q_proj.bias, for"),
    "surplus layer": (config(num_hidden_layers=2, layer_types="del"), "layers.2.input.* has no place"),
    "missing layer": (config(num_hidden_layers=4, layer_types="del"), "layers.3.* and 8 more, which no"),
    "no layer": (config(num_hidden_layers=0, layer_types="del"), "num_hidden_layers = 0; a model has 1 to"),
    "wrong shape": (weights(model__norm__weight=torch.ones(31)), r"norm.weight is \[31\], .* asks for \[32\]"),
    "vocabulary": (config(vocab_size=320), r"embed_tokens.weight is \[300, 32\].* asks for \[320, 32\]"),
    "ties another head": (weights(lm_head__weight=torch.zeros(300, 32)), "ties lm_head.weight to model"),
    "unties the head": (config(tie_word_embeddings=False), "asks for lm_head.weight, which"),
    "dtype": (config(dtype="bfloat16"), "dtype = 'bfloat16' in config.json, the tensors are float32"),
    "torch_dtype": (config(dtype="del", torch_dtype="float16"), "torch_dtype = 'float16' in config.json"),
    "unknown dtype": (config(dtype="foo"), "config.json"),
    "integers": (weights(model__norm__weight=torch.ones(32, dtype=torch.int8)), "norm.weight of type I8"),
    "quantized": (config(quantization_config={"quant_method": "fp8"}), "the weights are quantized"),
    "end of a turn": (edited("generation_config.json", eos_token_id=[2, 300]), r"eos_token_id = \[2, 300\]"),
    "padding": (config(pad_token_id=4000), "pad_token_id = 4000|Padding_idx"),
    "rope unknown": (rope(type="foo", factor=2.0), "rope_type = 'foo' is unknown; known are default, linear"),
    "rope without a type": (rope(factor=2.0), "factor = 2.0 and no rope_type"),
    "rope in two types": (rope(type="linear", rope_type="yarn", factor=2.0), r"differ \(linear, yarn\)"),
    "rope in two tables": (config(rope_scaling={"type": "linear", "factor": 2.0}), "rope_scaling and rope"),
    "two thetas": (config(rope_theta=1e6), "rope_theta = 1000000.0, and 10000.0 in rope_parameters"),
    "rope is text": (rope() and config(rope_parameters="linear"), "config.json"),
    "architecture of others": (config(architectures=["LlamaForCausalLM"]), "of model_type 'llama'; model"),
    "unknown architecture": (config(architectures=["Foo"]), "architectures has 'Foo', unknown"),
    "unknown model": (config(model_type="foo", auto_map={"AutoConfig": "evil.C"}), "json.* cannot be loaded"),
    "activation": (config(hidden_act="foo"), "no causal language model that is known: KeyError 'foo'"),
    "no heads": (config(num_attention_heads=0), "config.json"),
    "types of layers": (config(layer_types=["full_attention"]), "layer_types"),
    "adapters": (edited("adapter_config.json", peft_type="LORA"), "holds adapters .*merge them"),
    "pickles": (pickled, r"lacks the weights model.safetensors \(pytorch_model.bin: pickles are not read"),
    "no weights": (lambda folder: (folder / SINGLE).unlink(), "lacks the weights model.safetensors"),
    "broken link": (lambda f: ((f / SINGLE).unlink(), (f / SINGLE).symlink_to("gone")), "lacks the weights model"),
    "cut": (cut, r"model.safetensors' cannot be loaded"),
    "stray file": (lambda f: save_file({"a": torch.ones(1)}, f / "b.safetensors"), "b.safetensors is not in"),
    "two models": (edited(INDEX, weight_map={LOST: "a.safetensors"}), "lacks the weights a.safetensors"),
    "index leads outside": (edited(INDEX, weight_map={LOST: "../a.safetensors"}), r"names '../a.safetensors'"),
    "index of nothing": (edited(INDEX, weight_map={}), "has no weight_map"),
}
"""Changes of a folder with one file, and the error."""
WRONG_SHARDS: dict[str, tuple[Change, str]] = {
    "lost shard": (lambda f: shard_of(f, LOST).unlink(), r"lacks the weights model-0000\d-of"),
    "tensor not in its shard": (without_in_shard, rf"the index places {LOST} in model-.*, which has no such"),
    "tensor in two shards": (twice_in_shards, rf"{LOST} in model-.* and in another file"),
    "unlisted tensor": (lambda f: index_of(f, lambda m: m.pop(LOST)), rf"has {LOST}, which the index does not"),
    "unlisted shard": (
        lambda f: save_file({"model.norm.weight": torch.ones(32)}, f / "model-00009-of-00009.safetensors"),
        "model-00009-of-00009.safetensors is not in the index",
    ),
    "single file beside the index": (
        lambda f: save_file({"model.norm.weight": torch.ones(32)}, f / SINGLE),
        "model.safetensors is not in the index",
    ),
}


@pytest.mark.parametrize("name", [*WRONG, *WRONG_SHARDS])
def test_a_folder_that_contradicts_itself_is_refused_with_names(tmp_path: Path, name: str) -> None:
    change, words = (WRONG | WRONG_SHARDS)[name]
    saved(tmp_path, shards=2 if name in WRONG_SHARDS else 1)
    if name in WRONG_SHARDS:
        check_folder(tmp_path)
    change(tmp_path)
    with pytest.raises(ConfigError, match=words) as refused:
        check_folder(tmp_path)
    assert "\n" not in str(refused.value)


def test_every_loader_gives_the_same_refusal(tmp_path: Path) -> None:
    path = str(saved(tmp_path))
    drop(LOST)(tmp_path)
    for load in (
        lambda: load_model(path, "float32"),
        lambda: load_model(path, "bfloat16"),
        lambda: load_shards(path, lambda _: pytest.fail("nothing to part")),
        lambda: checked_folder(path),
        lambda: find_source(tmp_path),
        lambda: export(tmp_path, tmp_path / "out"),
    ):
        with pytest.raises(ConfigError, match=rf"asks for {LOST}, which no file has"):
            load()


def one_file(folder: Path) -> dict[str, str]:
    return dict.fromkeys(load_file(folder / SINGLE), SINGLE)


FINE: dict[str, Change] = {
    "as it is": lambda folder: None,
    "tied head with the embedding's values": with_weights(lambda w: w.update({LM_HEAD: w[EMBEDDING] + 0})),
    "constants of old releases": weights(
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4),
        model__layers__0__self_attn__masked_bias=torch.tensor(-1e4),
    ),
    "old spellings": config(
        dtype="del", torch_dtype="float32", rope_parameters="del", rope_theta=1e4, rope_scaling=None
    ),
    "scaled positions, old spelling": rope(type="linear", factor=2.0),
    "scaled positions, new spelling": config(
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    ),
    "no declared type": config(dtype="del"),
    "two ends of a turn": edited("generation_config.json", eos_token_id=[1, 2]),
    "an index of one file": lambda folder: edited(INDEX, weight_map=one_file(folder))(folder),
    "files of others": lambda folder: (folder / "pytorch_model.bin").write_bytes(b"not read"),
}


@pytest.mark.parametrize("name", FINE)
def test_what_readers_agree_on_is_loaded(tmp_path: Path, name: str) -> None:
    FINE[name](saved(tmp_path))
    checked = check_folder(tmp_path)
    assert {one.shape for one in checked.tensors.values()} >= {(300, 32), (32,)}
    loaded = dict(load_model(str(tmp_path), "float32").named_parameters())
    stored = load_file(tmp_path / SINGLE)
    assert all(torch.equal(weight, stored[name]) for name, weight in loaded.items())
    assert [*dict(checked.model.named_parameters())] == [*loaded]


def test_the_hubs_cache_of_links_is_loaded(tmp_path: Path) -> None:
    blobs, snapshot = saved(tmp_path / "blobs", shards=2), tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(blobs.iterdir())):
        path.rename(blobs / f"{number:064}")
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", f"{number:064}"))
    assert len(check_folder(snapshot).files) > 1
    assert load_tokenizer(str(snapshot)).chat_template == "x"


def test_experts_are_checked_as_they_lie_in_the_files(tmp_path: Path) -> None:
    sizes = SIZES | {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes)).save_pretrained(tmp_path)
    one = "model.layers.1.mlp.experts.2.up_proj.weight"
    assert check_folder(tmp_path).tensors[one].shape == (16, 32)
    assert load_shards(str(tmp_path), lambda _: pytest.fail("it is loaded whole")) is None
    drop(one)(tmp_path)
    with pytest.raises(ConfigError, match=r"asks for model.layers.1.mlp.experts.gate_up_proj, which"):
        check_folder(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_not_finite_are_counted(tmp_path: Path, value: float, dtype: Any) -> None:
    saved(tmp_path)
    bad = torch.full((48, 32), value)
    weights(model__norm__weight=bad[0].clone(), model__layers__0__mlp__up_proj__weight=bad)(tmp_path)
    for load in (lambda: load_model(str(tmp_path), dtype), lambda: export(tmp_path, tmp_path / "out")):
        with pytest.raises(ConfigError, match=r"2 of its tensors hold NaN or infinity, model\.(layers|norm)"):
            load()


def test_large_weights_are_finite(tmp_path: Path) -> None:
    """Their sum is not."""
    weights(model__norm__weight=torch.full((32,), 3e38))(saved(tmp_path))
    load_model(str(tmp_path), "float32")


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": 1e30},
        {"text_config": {"num_hidden_layers": 10**9}},
        {"n_routed_experts": 10**9},
        {"encoder_layers": 10**400},
    ],
)
def test_a_configuration_that_no_model_has_is_refused(tmp_path: Path, fields: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **fields}))
    with pytest.raises(ConfigError, match=r"a model has [01] to"):
        load_model(str(tmp_path), "float32")


@pytest.mark.parametrize("text", [b"\xff", b"[" * 100_000, b"[]", b'{"num_hidden_layers": ' + b"9" * 5000 + b"}"])
def test_a_configuration_that_cannot_be_read_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)


HEAD = b"GGUF" + struct.pack("<I", 3)
KEY = struct.pack("<Q", 1) + b"a"


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
        b"not GGUF at all",
    ],
)
def test_a_gguf_file_of_a_stranger_is_refused(tmp_path: Path, content: bytes) -> None:
    modules("gguf")
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        import_gguf(str(path), tmp_path / "out")
    assert "\n" not in str(refused.value) and not (tmp_path / "out").exists()


Gguf = Callable[[Any], object]


def tensor(name: str, *shape: int, value: float = 1.0) -> Gguf:
    import numpy as np

    return lambda writer: writer.add_tensor(name, np.full(shape, value, dtype=np.float32))


GGUF: dict[str, tuple[Gguf | dict[str, Any], str]] = {
    "rotary factors": (tensor("rope_freqs.weight", 16), "no use for rope_freqs.weight"),
    "a bias": (tensor("blk.0.attn_q.bias", 64), "no use for blk.0.attn_q.bias"),
    "experts": (tensor("blk.0.ffn_gate_exps.weight", 2, 96, 64), "no use for blk.0.ffn_gate_exps"),
    "a second layer": (tensor("blk.1.attn_norm.weight", 64), "no use for blk.1.attn_norm"),
    "lost tensor": ({"without": "blk.0.attn_v"}, "it lacks blk.0.attn_v.weight"),
    "scaling": (lambda w: w.add_string("llama.rope.scaling.type", "yarn"), "rope.scaling.type = 'yarn'"),
    "scaling factor": (lambda w: w.add_rope_scaling_factor(8.0), "llama.rope.scaling.factor = 8.0"),
    "soft cap": (lambda w: w.add_attn_logit_softcapping(50.0), "llama.attn_logit_softcapping = 50.0"),
    "window": (lambda w: w.add_sliding_window(64), "llama.attention.sliding_window = 64"),
    "expert count": (lambda w: w.add_expert_count(2), "llama.expert_count = 2"),
    "unknown key": (lambda w: w.add_float32("llama.logit_scale", 2.0), "llama.logit_scale = 2.0"),
    "one of several files": (lambda w: w.add_uint16("split.count", 2), "split.count = 2"),
    "another namespace": (lambda w: w.add_string("training.type", "lora"), "training.type = 'lora'"),
    "adapter": (lambda w: w.add_type("adapter"), "general.type = 'adapter'"),
    "another architecture": ({"arch": "gemma2"}, "general.architecture = 'gemma2' is not imported"),
    "partial rotation": ({"rope.dimension_count": 16}, "rope.dimension_count = 16|attn_k.weight is"),
    "another width": ({"attention.key_length": 16}, "attention.key_length = 16"),
    "shape": ({"feed_forward_length": 80}, r"ffn_down.weight is \[64, 96\], .* for \[64, 80\]"),
    "beyond the rows": (lambda w: w.add_pad_token_id(99), "padding_token_id = 99, and there are 18 tokens"),
    "not finite": (tensor("output.weight", 18, 64, value=float("nan")), "1 of its tensors hold NaN"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GGUF)
def test_what_an_import_leaves_out_is_refused_by_name(tmp_path: Path, name: str) -> None:
    change, words = GGUF[name]
    path = tmp_path / "m.gguf"
    if isinstance(change, dict):
        write_gguf(path, **change)
    else:
        write_gguf(path, change)
    with pytest.raises(ConfigError, match=words) as refused:
        import_gguf(str(path), tmp_path / "out")
    assert "\n" not in str(refused.value) and not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore")
def test_keys_without_effect_are_imported(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        lambda w: w.add_expert_count(0),
        lambda w: w.add_rope_scaling_factor(1.0),
        lambda w: w.add_description("of no matter"),
        lambda w: w.add_uint16("split.count", 1),
    )
    import_gguf(str(path), tmp_path / "out")
    assert check_folder(tmp_path / "out").model.config.num_hidden_layers == 1


def test_data_behind_the_end_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(ConfigError, match=r"claims \d+ bytes, and the file has \d+"):
        import_gguf(str(path), tmp_path / "out")


def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    content, name = bytearray(path.read_bytes()), b"output_norm.weight"
    place = content.index(name) + len(name) + 4 + 8 + 4  # one dimension, and the type of the values
    content[place : place + 8] = struct.pack("<Q", 0)  # the offset
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="lies over"):
        import_gguf(str(path), tmp_path / "out")


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


@pytest.mark.parametrize("name", ["config.json", SINGLE])
def test_a_file_without_permission_is_not_called_missing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root reads every file, and so the system's refusal is imitated."""
    folder, read = saved(tmp_path / "model"), io.open

    def refuse(path: Any, *rest: Any, **named: Any) -> Any:
        if str(path).endswith(name):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path, *rest, **named)

    monkeypatch.setattr("io.open", refuse)  # of pathlib
    with pytest.raises(ConfigError, match=rf"{name}.*: Permission denied") as refused:
        check_folder(folder)
    assert "Errno" not in str(refused.value) and "No such file" not in str(refused.value)
