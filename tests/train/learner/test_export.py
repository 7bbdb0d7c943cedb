"""A checkpoint leaves as a folder that transformers loads, or as a GGUF file that import-gguf reads back."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rocstar.engine.chat.chat import load_template
from rocstar.train.cli import main
from rocstar.train.learner.export.export import export
from rocstar.train.learner.import_gguf import import_gguf
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import write_json

from ...needs import gguf_reader, modules

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
CONFIG = (
    '[run]\nname = "tiny"\nseed = 5\n[model]\npath = "scratch"\ntemplate = "compact"\n'
    '[rl]\nadvantage = "rloo"\n[tool]\nwall_s = 2.5\n'
    '[[stages]]\nname = "one"\nsteps = 3\nmax_response_tokens = 70\nmax_turns = 2\n'
    'data = { source = "FILE" }\n[[eval]]\ntemperature = 0.6\n'
)


def make_tokenizer(pre_tokenizer: Any) -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_end|>", "<tool_call>", *letters, "ab", "abc"]
    model = models.BPE({token: k for k, token in enumerate(tokens)}, [("a", "b"), ("ab", "c")])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template="old"
    )


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def save(folder: Path, model: Any, tokenizer: PreTrainedTokenizerFast) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a complete checkpoint of step 3, its evaluation, and an incomplete one of step 4."""
    run = tmp_path_factory.mktemp("export") / "run"
    tokenizer = make_tokenizer(BYTES)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8, vocab_size=len(tokenizer), tie_word_embeddings=True))
    save(run / "checkpoints" / "step_3", model, tokenizer)
    shutil.copytree(run / "checkpoints" / "step_3", run / "checkpoints" / "step_4")
    (run / "checkpoints" / "step_3" / "COMPLETE").touch()
    tasks = run.parent / "tasks.jsonl"
    tasks.write_text("{}\n")
    (run / "config.toml").write_text(CONFIG.replace("FILE", str(tasks)))
    start = {
        "commit": "abc",
        "rocstar": "0.1.0",
        "command": ["/home/me/rocstar", "train", "--output-dir=/home/me/run"],
        "host": "mine",
        "status": "complete",
    }
    write_json(run / "manifest.json", {"v": 1, "starts": [start]})
    scores = {"held": {"k": 4, "avg": 0.5, "interval": [0.4, 0.6], "num_questions": 10, "questions": {}}}
    results = run / "evaluations" / "step_000003" / "results.json"
    results.parent.mkdir(parents=True)
    write_json(results, {"sets": scores})
    facts: dict[str, Any] = {"data": {"held": {"digest": "0123456789abcdef"}}}
    facts["settings"] = {"sampling": {"held": {"temperature": 0.6}}}
    write_json(results.with_name("manifest.json"), {"v": 1, "starts": [{"evaluation": facts}]})
    return run


def test_a_run_becomes_a_folder_that_transformers_loads(run: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "models" / "tiny"
    assert main(["export", str(run), f"--out={out}"]) == 0
    assert "wrote" in capsys.readouterr().out and [p.name for p in out.parent.iterdir()] == ["tiny"]

    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.dtype == torch.bfloat16 and model.lm_head.weight is model.model.embed_tokens.weight
    was = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "step_3").state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, was[name].to(torch.bfloat16)), name
    assert tokenizer.chat_template == load_template("compact", None), "the one that it was trained with"
    text = tokenizer.apply_chat_template([{"role": "user", "content": "abc"}], tokenize=False)
    assert text.startswith("<|im_start|>system")
    generation = model.generation_config
    assert (generation.temperature, generation.top_k, generation.do_sample) == (0.6, 0, True)
    assert (generation.eos_token_id, generation.pad_token_id) == (1, 0)
    assert not list(out.rglob("state")) and not (out / "COMPLETE").exists()


def test_the_card_says_what_is_known_and_names_no_machine(run: Path, tmp_path: Path) -> None:
    card = (export(run, tmp_path / "out") / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "| held | 10 | 0.500 (avg@4) | [0.400, 0.600] | | 0.6 | 0123456789ab | not known |" in card
    digest = hashlib.sha256(b"{}\n").hexdigest()
    for row in (f"| one | tasks.jsonl | all | {digest} |", "| one | 3 steps | 70 | 2 |", "| run.seed | 5 |"):
        assert row in card
    assert "| rl.advantage | rloo |" in card and "| tool.wall_s | 2.5 |" in card
    assert "rocstar train --output-dir=run\n" in card and "trained from random ones" in card
    assert "after 3 steps" in card and "| commit | abc |" in card and "Not tried: SGLang and vLLM" in card
    assert "/home/me" not in card and "mine" not in card and str(tmp_path) not in card


def test_a_folder_of_no_run_keeps_its_own_template(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(run / "checkpoints" / "step_3", alone)
    out = export(alone, tmp_path / "out")
    assert AutoTokenizer.from_pretrained(out).chat_template == "old"
    assert "Not evaluated" in (out / "README.md").read_text()


def test_what_cannot_be_exported_is_refused_before_anything_is_written(run: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken"
    shutil.copytree(run / "checkpoints" / "step_3", broken)
    config = json.loads((broken / "config.json").read_text())
    write_json(broken / "config.json", config | {"hidden_size": 16})
    cases = [
        (run, tmp_path / "full", "is not empty"),
        (run, tmp_path / "full" / "kept" / "x", "is a file"),
        (tmp_path / "nothing", tmp_path / "out", "is not a folder"),
        (tmp_path / "empty", tmp_path / "out", "neither config.json nor a complete checkpoint"),
        (run / "checkpoints" / "step_4", tmp_path / "out", "is not complete"),
        (broken, tmp_path / "out", "config.json asks for"),
    ]
    for source, out, words in cases:
        with pytest.raises(ConfigError, match=words):
            export(source, out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken", "empty", "full"]
    assert main(["export", str(run), f"--out={tmp_path / 'full'}"]) == 2


@pytest.mark.parametrize("text", ["stages = 3", "model = 3", "eval = [{ data = { limit = 2 } }]", "sft = 1"])
def test_a_run_whose_recipe_has_another_form_is_damaged(run: Path, tmp_path: Path, text: str) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match="is damaged"):
        export(tmp_path / "run", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


LLAMA = LlamaForCausalLM, LlamaConfig
QWEN2 = Qwen2ForCausalLM, Qwen2Config


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "tied"), [(LLAMA, True), (LLAMA, False), (QWEN2, False)])
def test_a_gguf_file_comes_back_through_import_gguf(kind: Any, tied: bool, tmp_path: Path) -> None:
    gguf_reader()
    model_class, config_class = kind
    tokenizer = make_tokenizer(BYTES)
    rows = len(tokenizer) + 3  # a head that is padded
    torch.manual_seed(1)
    model = model_class(config_class(**SHAPE, vocab_size=rows, tie_word_embeddings=tied, rope_theta=5000.0))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    source = save(tmp_path / "source", model.to(torch.bfloat16), tokenizer)
    out = export(source, tmp_path / "out", form="gguf")
    (file,) = out.glob("*.gguf")
    import_gguf(str(file), tmp_path / "back")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert {n: tuple(w.shape) for n, w in back.state_dict().items()} == {
        n: tuple(w.shape) for n, w in model.state_dict().items()
    }
    for name, weight in back.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name
    again = AutoTokenizer.from_pretrained(tmp_path / "back")
    for text in ("abc ab c", "x<tool_call>abc<|im_end|>", "é 12\n\n  z"):
        assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert (again.eos_token, again.pad_token, again.chat_template) == ("<|im_end|>", "<|endoftext|>", "old")
    assert len(load_file(source / "model.safetensors")) == len(list(model.named_parameters()))


def test_what_gguf_cannot_say_is_refused(run: Path, tmp_path: Path) -> None:
    modules("gguf")
    source = run / "checkpoints" / "step_3"
    config = json.loads((source / "config.json").read_text())
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    gemma = tmp_path / "gemma"
    Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8, vocab_size=300)).save_pretrained(gemma)
    cut = {"type": "Split", "pattern": {"Regex": "[0-9]|[^0-9]+"}, "behavior": "Isolated", "invert": False}
    own = {"type": "Sequence", "pretokenizers": [cut, {"type": "ByteLevel", "use_regex": False}]}
    yarn = {"rope_type": "yarn", "factor": 4.0}
    cases = [
        (gemma, json.loads((gemma / "config.json").read_text()), tokenizer, "model_type 'gemma2' cannot be"),
        (source, config | {"rope_parameters": yarn}, tokenizer, "scaled rotary"),
        (source, config, tokenizer | {"pre_tokenizer": own}, "a way that GGUF has no name for"),
    ]
    for k, (model, changed, words, reason) in enumerate(cases):
        folder = tmp_path / str(k)
        shutil.copytree(source, folder)
        shutil.copy(model / "model.safetensors", folder)
        write_json(folder / "config.json", changed)
        write_json(folder / "tokenizer.json", words)
        with pytest.raises(ConfigError, match=reason):
            export(folder, tmp_path / "out", form="gguf")
    assert not (tmp_path / "out").exists()
