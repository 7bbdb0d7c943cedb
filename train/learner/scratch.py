"""A tokenizer and a Qwen3 made from nothing, small enough to learn a tool's format in a minute on a CPU.

torch and transformers are imported inside the functions, so that `--help` stays fast.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import ScratchConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen3ForCausalLM

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Dropped by `decode(skip_special_tokens=True)`. Padding is the first, end of a turn the last."""

MARKUP_TOKENS = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<reason>", "</reason>", "<answer>", "</answer>"),
)
"""One token each, and part of the text: decoding keeps them."""

SPECIAL_TOKENS = CONTROL_TOKENS + MARKUP_TOKENS
PAD_TOKEN, EOS_TOKEN = "<|endoftext|>", "<|im_end|>"
MAX_POSITIONS = 1024
_INITIAL_STD = 0.02
_TURN_HEADER = r"\A(?:system|user|assistant|tool)\n"


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int, template: str, special_tokens: Sequence[str] = SPECIAL_TOKENS
) -> PreTrainedTokenizerFast:
    """Byte-level BPE over `texts` with `template` (Jinja source) as its chat template.

    Every digit is a token of its own, so that a number is copied digit by digit. Merges cross spaces
    ("superwords"): frequent code becomes few tokens, which keeps trajectories short. They never cross a
    turn's header ("assistant" and its newline), so a conversation encoded turn by turn, as a rollout does,
    has the ids of the conversation encoded at once. `special_tokens` must hold CONTROL_TOKENS; the others
    survive decoding. Token ids start with them.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    texts = iter(texts)
    first = next(texts, None)
    if first is None:
        raise ConfigError("the tokenizer has no text to learn from; give it at least one demonstration")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_TURN_HEADER), "isolated"),
            pre_tokenizers.Split(Regex(r"[0-9]|[^0-9]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The text between special tokens: merges over one could never be used.
    boundary = re.compile("|".join(re.escape(token) for token in special_tokens))
    texts = itertools.chain([first], texts)
    tokenizer.train_from_iterator((part for text in texts for part in boundary.split(text) if part), trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=_keep_markup(tokenizer),
        eos_token=EOS_TOKEN,
        pad_token=PAD_TOKEN,
        chat_template=template,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )


def _keep_markup(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, in which only control tokens are dropped by skip_special_tokens."""
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] in CONTROL_TOKENS
    return Tokenizer.from_str(json.dumps(state))


def digit_token_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids of the tokens whose text is digits and nothing else."""
    ids = range(len(tokenizer))
    return frozenset(k for k in ids if re.fullmatch(r"[0-9]+", str(tokenizer.decode([k]))))


def build_model(scratch: ScratchConfig, vocab_size: int, *, seed: int) -> Qwen3ForCausalLM:
    """A float32 Qwen3 whose weights depend on the arguments alone; the global generator is left as it was.

    Normal with std 0.02; the projections back into the residual stream are scaled by 1 / sqrt(2 layers),
    so that its variance does not grow with depth (GPT-2). Embeddings are tied.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=scratch.hidden_size,
        num_hidden_layers=scratch.num_layers,
        num_attention_heads=scratch.num_heads,
        num_key_value_heads=scratch.num_kv_heads,
        head_dim=scratch.hidden_size // scratch.num_heads,
        intermediate_size=scratch.intermediate_size,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index(EOS_TOKEN),
        pad_token_id=SPECIAL_TOKENS.index(PAD_TOKEN),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        model = Qwen3ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    residual_std = _INITIAL_STD / math.sqrt(2 * scratch.num_layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                parameter.fill_(1.0)
                continue
            into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            parameter.normal_(0.0, residual_std if into_residual else _INITIAL_STD, generator=generator)
    return model
