"""The text of ids, joined from their tokens', is what the tokenizer itself makes of them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rocstar.engine.chat.chat import SAMPLE, TokenText
from tests.fakes.scripted_policy import CHATML_TOKENS, ByteTokenizer

BYTES = ByteTokenizer(corpus=["the sum of the primes \u4e2d\u6587 \U0001f600 \u00e9t\u00e9"] * 20, vocab_size=320)
JOINED = TokenText(BYTES.decode, BYTES.encode(SAMPLE))


@pytest.mark.parametrize("tokenizer", [BYTES, ByteTokenizer()])
def test_a_byte_level_tokenizer_is_joined(tokenizer: ByteTokenizer) -> None:
    asked: list[list[int]] = []

    def decode(ids: list[int]) -> str:
        asked.append(ids)
        return tokenizer.decode(ids)

    made = TokenText(decode, tokenizer.encode(SAMPLE))
    ids = tokenizer.encode("the sum of the primes")
    made.text(ids)
    asked.clear()
    assert made.text(ids) == "the sum of the primes" and not asked


@given(st.lists(st.integers(0, BYTES.vocab_size + 3), max_size=30))
def test_any_ids_have_the_text_of_the_tokenizer(ids: list[int]) -> None:
    assert JOINED.text(ids) == BYTES.decode(ids) == JOINED.text(tuple(ids))


@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from(CHATML_TOKENS))).map("".join))
def test_any_text_comes_back(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert JOINED.text(BYTES.encode(text)) == text


def metaspace() -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    """Drops the space in front of what it is given."""
    words = {word: k for k, word in enumerate(["<unk>", "\u2581", "\u2581a", "a", "\u2581b", "b"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return lambda text: tokenizer.encode(text).ids, lambda ids: tokenizer.decode(ids)


def cleaned() -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    """Takes the space in front of a full stop away, as some models' tokenizers are set to."""
    return BYTES.encode, lambda ids: BYTES.decode(ids).replace(" .", ".")


@pytest.mark.parametrize("kind", [metaspace, cleaned])
def test_a_decoder_to_which_neighbours_matter_decodes_the_whole(
    kind: Callable[[], tuple[Callable[[str], list[int]], Callable[[list[int]], str]]],
) -> None:
    encode, decode = kind()
    made = TokenText(decode, encode(SAMPLE))
    for text in ("a b", "b a . b"):
        assert made.text(encode(text)) == decode(encode(text))
    joined = "".join(decode([token]) for token in encode("b a . b"))
    assert joined != decode(encode("b a . b")), "this decoder can be joined after all: it tests nothing"
