"""The tokenizer's promises to a rollout, and a model that depends on its seed and nothing else."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rocstar.train.learner.scratch import (
    CONTROL_TOKENS,
    MARKUP_TOKENS,
    SPECIAL_TOKENS,
    build_model,
    digit_token_ids,
    train_tokenizer,
)
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import ScratchConfig

from ...fakes.tiny import assert_same_weights

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def conversation(a: int, b: int) -> str:
    return (
        f"<|im_start|>user\nWhat is the gcd of {a} and {b}?<|im_end|>\n<|im_start|>assistant\n"
        f'Computing.\n<tool_call>\n{{"code": "import math\\nprint(math.gcd({a}, {b}))"}}\n</tool_call>'
        f"<|im_end|>\n<|im_start|>user\n<tool_response>\n{math.gcd(a, b)}\n</tool_response><|im_end|>\n"
        f"<|im_start|>assistant\n<answer>\\boxed{{{math.gcd(a, b)}}}</answer><|im_end|>\n"
    )


TEXTS = [conversation(a, b) for a in range(10, 60, 7) for b in range(100, 999, 97)]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, vocab_size=400, template=TEMPLATE)


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return list(tokenizer(text)["input_ids"])


def test_special_tokens_come_first_and_are_one_token_each(tokenizer: PreTrainedTokenizerFast) -> None:
    assert [encode(tokenizer, token) for token in SPECIAL_TOKENS] == [[i] for i in range(len(SPECIAL_TOKENS))]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.chat_template == TEMPLATE


def test_decoding_keeps_markup_and_drops_control_tokens_only_when_asked(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = encode(tokenizer, TEXTS[0])
    assert tokenizer.decode(ids) == TEXTS[0]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert not any(token in text for token in CONTROL_TOKENS)
    assert [t for t in MARKUP_TOKENS if t in TEXTS[0]] == [t for t in MARKUP_TOKENS if t in text]


@given(st.text(max_size=60))
def test_any_text_survives_the_round_trip(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(encode(tokenizer, text)) == text


def test_every_digit_is_a_token_and_nothing_else_holds_one(tokenizer: PreTrainedTokenizerFast) -> None:
    digits = digit_token_ids(tokenizer)
    texts = [str(tokenizer.decode([i])) for i in range(len(tokenizer))]
    assert sorted(texts[i] for i in digits) == list("0123456789")
    assert not any(re.search("[0-9]", text) for i, text in enumerate(texts) if i not in digits)
    assert [texts[i] for i in encode(tokenizer, "4207")] == list("4207")


def test_merges_cross_spaces_and_shorten_what_is_frequent(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = [str(tokenizer.decode([i])) for i in range(len(SPECIAL_TOKENS), len(tokenizer))]
    assert any(" " in text.strip() for text in texts)
    assert len(encode(tokenizer, TEXTS[0])) < 0.3 * len(TEXTS[0])
    assert not any("im_start" in text or "tool_call" in text for text in texts), "a wasted merge"


@pytest.mark.parametrize("text", TEXTS[:5])
def test_turns_encoded_apart_have_the_ids_of_the_whole(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    """A rollout encodes prompt, completions and tool results each by itself."""
    pieces = re.split(r"(?<=<\|im_start\|>assistant\n)|(?<=<\|im_end\|>)", text)
    assert len(pieces) > 5
    apart = [token for piece in pieces if piece for token in encode(tokenizer, piece)]
    assert apart == encode(tokenizer, text)


def test_a_tokenizer_survives_saving(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    assert loaded.chat_template == TEMPLATE
    assert encode(loaded, TEXTS[0]) == encode(tokenizer, TEXTS[0])
    assert "<answer>" in loaded.decode(encode(loaded, TEXTS[0]), skip_special_tokens=True)


def test_a_tokenizer_needs_text() -> None:
    with pytest.raises(ConfigError, match="no text"):
        train_tokenizer([], vocab_size=400, template=TEMPLATE)


# ---------------------------------------------------------------- model

SMALL = ScratchConfig(hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=48)


def test_weights_depend_on_the_seed_alone_and_the_global_generator_is_unchanged() -> None:
    torch.manual_seed(1)
    first = build_model(SMALL, 300, seed=5)
    torch.manual_seed(2)
    assert_same_weights(first, build_model(SMALL, 300, seed=5))
    found = torch.rand(1)
    torch.manual_seed(2)
    assert torch.equal(torch.rand(1), found)
    other = build_model(SMALL, 300, seed=6)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_weights_have_the_stated_spread() -> None:
    model = build_model(ScratchConfig(), 900, seed=0)
    layers = ScratchConfig().num_layers
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
            continue
        into_residual = "o_proj" in name or "down_proj" in name
        expected = 0.02 / math.sqrt(2 * layers) if into_residual else 0.02
        assert parameter.std().item() == pytest.approx(expected, rel=0.05), name


def test_the_configuration_is_the_asked_one() -> None:
    model = build_model(ScratchConfig(), 900, seed=0)
    config = model.config
    assert model.num_parameters() == 336_000
    assert (config.head_dim, config.num_key_value_heads, config.max_position_embeddings) == (16, 3, 1024)
    assert config.to_dict()["rope_parameters"]["rope_theta"] == 10_000.0
    assert (config.eos_token_id, config.pad_token_id) == (2, 0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"hidden_size": 100, "num_heads": 6}, "multiple of 12"),
        ({"hidden_size": 32, "num_heads": 4, "num_kv_heads": 3}, "no multiple of num_kv_heads = 3"),
        ({"num_heads": 0}, "num_heads"),
    ],
)
def test_heads_that_do_not_fit_are_named(fields: dict[str, int], part: str) -> None:
    with pytest.raises(ValidationError, match=part):
        ScratchConfig(**fields)
