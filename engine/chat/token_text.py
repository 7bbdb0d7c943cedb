"""Token ids to text, a token at a time.

A byte-level tokenizer's text is that of its tokens' bytes, one behind the other. So where every token is
whole characters, the text is the concatenation of the tokens' own texts, and a look-up per token gives it in
less time than the tokenizer's decode. Where one is not (part of an emoji), its own text shows U+FFFD, and the
tokenizer decodes the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[list[int]], str]

PART = "\ufffd"
SAMPLE = " a b . c ! d ? e , f ' g n't h 'm i 's j 've k 're  l\n\n m\t 12"
"""Changes of other decoders between tokens: leading spaces, spaces around punctuation and in contractions."""


class TokenText:
    """Invariant: `text(ids)` is `decode(ids)`."""

    def __init__(self, decode: Decode, sample_ids: Sequence[int]) -> None:
        """`sample_ids`: those of SAMPLE. A decoder that they show not to be byte-level does all the work."""
        self._decode = decode
        self._texts = _Texts(decode)
        self.is_joined = self._join(sample_ids) == decode(list(sample_ids))
        """As far as the sample shows."""

    def text(self, ids: Sequence[int]) -> str:
        if self.is_joined and PART not in (text := self._join(ids)):
            return text
        return self._decode(list(ids))

    def of_token(self, token: int) -> str | None:
        """The token's text where it is that in every text; None where its neighbours have a part in it."""
        if not self.is_joined:
            return None
        text = self._texts[token]
        return None if PART in text else text

    def _join(self, ids: Sequence[int]) -> str:
        return "".join(map(self._texts.__getitem__, ids))


class _Texts(dict[int, str]):
    """The text of each token by itself; filled as tokens come."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def __missing__(self, token: int) -> str:
        text = self[token] = self._decode([token])
        return text
