"""A problem as words that survive another typesetting: NFKC, case, LaTeX commands and spacing. Pure.

Overlap is measured in words alone. Words with signs decide if two rows are copies (`conversation_key`).
"""

import hashlib
import json
import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

MASK: Final = "#"
"""Replaces a number in masked words."""

_TABLES: Final = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
_RENAMED, _SIGNS, _TYPESETTING, _ALIKE = (
    {name: meant for meant, names in _TABLES[table].items() for name in names.split()}
    for table in ("renamed", "signs", "typesetting", "same_signs")
)
_COMMANDS: Final = {**_RENAMED, **dict.fromkeys((*_TYPESETTING, *_SIGNS), "")}
"""Replacements of LaTeX commands; others become their names. Signs that exist in Unicode are removed."""
_SYMBOLS: Final = str.maketrans(_TABLES["spoken"])
_COMMAND: Final = re.compile(r"\\([a-z]+)")
FIGURE: Final = re.compile(r"\[asy\].*?\[/asy\]", re.S)
"""A figure in code."""
_IDEOGRAPH: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_WORD: Final = re.compile(r"\d+|[^\W\d]+")
_ASCII_WORD: Final = re.compile(r"[a-z]+|[0-9]+")
"""The same of lower-case text in ASCII, in half the time."""
_APOSTROPHE: Final = re.compile(r"(?<=[a-z])'(?=[a-z])")
_SIGNED: Final = {**_RENAMED, **_TYPESETTING, **_SIGNS}
_SAME_SIGNS: Final = str.maketrans(_ALIKE)
_DELIMITERS: Final = re.compile(r"\\[()\[\]]|\$")
_SIGN_OR_WORD: Final = re.compile(r"\d+(?:\.\d+)?|[^\W\d]+|[^\w\s.,;:?\"`{}\\~&]")


def words_of(text: str) -> list[str]:
    """Return runs of letters and of digits in lower case; an ideograph is a word. Omit figures in code."""
    text = unicodedata.normalize("NFKC", text).casefold()
    if "[asy]" in text:
        text = FIGURE.sub(" ", text)
    if not text.isascii():
        text = _IDEOGRAPH.sub(r" \g<0> ", text.translate(_SYMBOLS))
    if "'" in text:
        text = _APOSTROPHE.sub("", text)
    if "\\" in text:
        text = _COMMAND.sub(lambda command: f" {_COMMANDS.get(command[1], command[1])} ", text)
    return _ASCII_WORD.findall(text) if text.isascii() else _WORD.findall(text.replace("_", " "))


def signed_words_of(text: str) -> list[str]:
    """Return words and signs: "3 + 4" differs from "3 - 4" and f(x) from f[x]; typesetting, punctuation and
    braces are dropped. Figures in code stay, because two problems may differ only there.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    text = _DELIMITERS.sub(" ", text)
    if not text.isascii():
        text = _IDEOGRAPH.sub(r" \g<0> ", text.translate(_SYMBOLS).translate(_SAME_SIGNS))
    text = _APOSTROPHE.sub("", text)
    if "\\" in text:
        text = _COMMAND.sub(lambda command: f" {_SIGNED.get(command[1], command[1])} ", text)
    return _SIGN_OR_WORD.findall(text.replace("_", " ").replace("...", " "))


def masked(words: Sequence[str]) -> list[str]:
    """Return the words with MASK in place of each number."""
    return [MASK if word.isdecimal() else word for word in words]


def numbers_in(words: Sequence[str]) -> frozenset[str]:
    """Return the numbers among words, without leading zeros."""
    return frozenset(word.lstrip("0") or "0" for word in words if word.isdecimal())


def conversation_key(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the key of a conversation: equal if all text and calls are equal but for typesetting."""
    turns = []
    for message in messages:
        if message["role"] not in ("system", "developer"):  # a conversation is published with several of them
            functions = [call["function"] for call in message.get("tool_calls") or ()]
            calls = [[one["name"], _sorted_arguments(one["arguments"])] for one in functions]
            turns.append([message["role"], signed_words_of(message.get("content") or ""), calls])
    text = json.dumps(turns, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()


def _sorted_arguments(value: Any) -> str:
    """Return arguments, an object or its JSON, as JSON with sorted keys."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
