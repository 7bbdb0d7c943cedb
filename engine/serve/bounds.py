"""How much a request may hold, before it is tokenised: a prompt fits the model's context, or is refused.

A token has a bounded number of characters, so that a text has a lower bound of tokens by its length alone.
The same rule holds for ids, for messages and for special tokens, each of which is at least one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from rocstar.engine.chat.chat import Tokenizer, special_tokens
from rocstar.engine.serve.asked import (
    AskedChat,
    AskedCompletion,
    AskedMessage,
    AskedText,
    AskedTokens,
    Sampled,
    read,
)
from rocstar.engine.serve.refusals import ServeRefusal

M = TypeVar("M", bound=BaseModel)

MAX_FIELDS = 128
"""Of a request, and of its `metadata`."""
MAX_ITEMS = 1 << 20
"""Objects, lists and values of a request's tools and calls, if the context is not known."""
ITEMS_PER_TOKEN = 4
UNKNOWN_TOKEN_CHARS = 256
"""Characters of the longest token of a tokenizer without a list of its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of one model and server. Pickled to the processes that read large bodies.

    Attributes:
        max_tokens: of a prompt and its answer together; None if the engine does not report it.
        token_chars: characters of the longest token.
        special: texts that the tokenizer turns into one control token each.
        max_choices: choices of one request.
    """

    max_tokens: int | None
    token_chars: int = UNKNOWN_TOKEN_CHARS
    special: frozenset[str] = frozenset()
    max_choices: int = 1024

    def check(self, asked: BaseModel) -> None:
        """ServeRefusal for a request that cannot fit, whatever the tokenizer makes of it."""
        if isinstance(asked, Sampled):
            for name, fields in (("the body", asked.model_extra), ("metadata", asked.metadata)):
                if len(fields or {}) > MAX_FIELDS:
                    raise ServeRefusal(
                        f"{name} has {len(fields or {})} fields beside those that are known, at most "
                        f"{MAX_FIELDS} are read: leave the others out",
                        code="invalid_value",
                    )
        if isinstance(asked, AskedChat):
            for name in ("tool_choice", "response_format"):
                self._check_text(_texts(getattr(asked, name)), name)
            self._check_ids(asked.prefix_token_ids or (), "prefix_token_ids")
            self._check_messages(asked.messages)
            self._check_text(_texts(asked.tools or []), "tools")
        elif isinstance(asked, AskedCompletion):
            self._check_prompts(asked)
        elif isinstance(asked, AskedTokens):
            self._check_messages(asked.messages or [])
            self._check_text([asked.prompt or ""], "prompt")
        elif isinstance(asked, AskedText):
            self._check_ids(asked.tokens, "tokens")

    def _check_prompts(self, asked: AskedCompletion) -> None:
        prompts: list[Any] = asked.prompt if isinstance(asked.prompt, list) else [asked.prompt]
        if prompts and isinstance(prompts[0], int):
            prompts = [prompts]
        if len(prompts) * asked.num_choices > self.max_choices:
            raise ServeRefusal(
                f"prompt has {len(prompts)} entries of {asked.num_choices} choices each; one request may "
                f"have {self.max_choices} choices: send fewer prompts per request",
                param="prompt",
                code="invalid_value",
            )
        for k, prompt in enumerate(prompts):
            if isinstance(prompt, str):
                self._check_text([prompt], f"prompt.{k}")
            else:
                self._check_ids(prompt, f"prompt.{k}")

    def _check_messages(self, messages: list[AskedMessage]) -> None:
        if self.max_tokens is not None and len(messages) > self.max_tokens:
            raise self._too_long(
                f"messages has {len(messages)} entries of at least one token each", "messages"
            )
        texts = [
            text
            for message in messages
            for text in _texts(message.model_dump(exclude={"role"}, exclude_none=True))
        ]
        self._check_text(texts, "messages")

    def _check_ids(self, ids: Any, param: str) -> None:
        if self.max_tokens is not None and len(ids) > self.max_tokens:
            raise self._too_long(f"{param} has {len(ids)} tokens", param)

    def _check_text(self, texts: list[str], param: str) -> None:
        most = MAX_ITEMS if self.max_tokens is None else ITEMS_PER_TOKEN * self.max_tokens + MAX_FIELDS
        if len(texts) > most:
            raise self._too_long(f"{param} has {len(texts)} values, at most {most} are read", param)
        if self.max_tokens is None:
            return
        chars = sum(map(len, texts))
        if chars > self.max_tokens * self.token_chars:
            raise self._too_long(
                f"{param} has {chars} characters, and the longest token has {self.token_chars}", param
            )
        begins = {mark[:1] for mark in self.special}  # few, where there may be a thousand special tokens
        if sum(text.count(begin) for text in texts for begin in begins) <= self.max_tokens:
            return
        marks = sum(text.count(mark) for text in texts for mark in self.special)
        if marks > self.max_tokens:
            raise self._too_long(f"{param} holds {marks} special tokens as text", param)

    def _too_long(self, what: str, param: str) -> ServeRefusal:
        return ServeRefusal(
            f"{what}: it cannot fit into the {self.max_tokens or 'many'} tokens that the model takes with "
            "its answer; send fewer or shorter texts",
            param=param,
            code="context_length_exceeded",
        )


def bounds_of(tokenizer: Tokenizer, *, max_tokens: int | None, max_choices: int) -> Bounds:
    """The limits that follow from a tokenizer."""
    list_vocab = getattr(tokenizer, "get_vocab", None)
    vocab: Iterable[str] = list_vocab() if callable(list_vocab) else ()
    return Bounds(
        max_tokens=max_tokens,
        token_chars=max(map(len, vocab), default=UNKNOWN_TOKEN_CHARS),
        special=special_tokens(tokenizer),
        max_choices=max_choices,
    )


def read_within(body: bytes, model: type[M], bounds: Bounds) -> M:
    """The body as the model, within the bounds. ServeRefusal names the first field that is wrong."""
    asked = read(model, body)
    bounds.check(asked)
    for name in asked.model_extra or {}:  # nobody reads it, and it may be most of the body
        (asked.model_extra or {})[name] = None
    return asked


def _texts(value: Any) -> list[str]:
    """Every text of a JSON value, names included; a text for each other value, too."""
    found: list[str] = []
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            found.append(one)
        elif isinstance(one, Mapping):
            found.append("")
            left += [*one, *one.values()]
        elif isinstance(one, list):
            found.append("")
            left += one
        else:
            found.append("")
    return found
