"""Messages to token ids, without ever re-tokenising what the policy wrote.

A conversation grows only at its end. The template's text around a turn is found once, at start-up
(boundaries.py). The policy writes its text and the stop token that begins `end`; the engine appends
the rest of `end`, the tool results and the next lead. `opening` is text the template gives the policy
(`<reason>` in rStar2's).

Content is data: a special token written inside it (by a program, a dataset) is encoded as plain text.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol

from rocstar.engine.chat.boundaries import (
    Boundaries,
    ChatError,
    Message,
    Rendering,
    Thinking,
    Tool,
    find_boundaries,
    find_suffix,
    find_user_turn,
    load_template,
    rewritten,
)
from rocstar.engine.chat.callforms import decoded_arguments, schemas_of
from rocstar.engine.chat.readback import difference, find_call_form
from rocstar.engine.chat.shown import ShownCheck
from rocstar.engine.chat.toolcalls import THOUGHT, parse_tool_calls
from rocstar.engine.types import ToolCall, TurnForm

__all__ = ["ChatError", "ChatFormat", "load_template"]

PIECE_CHARS = 1 << 16
"""Searched by one call of `re`, which keeps the interpreter's lock."""
_CUT = "\udc00"
"""Marks where a text is cut before it is encoded. A lone surrogate: no text a tokenizer accepts holds it."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the engine uses."""

    all_special_tokens: list[str]

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str: ...


class ChatFormat:
    """One template, one tokenizer, one set of tools.

    Invariant: prompt_ids + the policy's ids + tool_suffix_ids + ... decodes to the render of the whole
    conversation (whitespace that the template trims off contents apart). They equal its tokenisation
    where the policy's tokens are the ones that encoding its text alone gives, no merge crosses the place
    where the policy begins to write, and no content holds a special token.

    `thinking` = "keep" accepts a template that changes `<think>` blocks of turns (Qwen3's own). What the
    policy wrote then stays as it wrote it, and the invariant holds up to those blocks; it holds as it stands
    for Qwen3's template where every turn thinks in the form `<think>\\n..\\n</think>\\n\\n..`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        tools: Sequence[Tool],
        *,
        thinking: Thinking = "refuse",
        skips_thoughts: bool = True,
        date: str = "",
    ) -> None:
        self.tokenizer, self.template, self.tools = tokenizer, template, list(tools)
        self._thinking = thinking
        self.render = Rendering(template, **token_names(tokenizer), date=date)
        self.boundaries = find_boundaries(self.render, tools, thinking=thinking)
        form = turn_form(self.render, tools, self.boundaries)
        self.form = replace(form, skips_thoughts=skips_thoughts)
        self._schemas = schemas_of(tools)
        special = special_tokens(tokenizer)
        self.text = TokenText(
            partial(tokenizer.decode, skip_special_tokens=False), tokenizer.encode(SAMPLE, add_special_tokens=False)
        )
        # Before the second character of every special token that begins here.
        self._inside_special = re.compile(f"(?={'|'.join(map(re.escape, sorted(special))) or '(?!)'})(.)", re.DOTALL)
        self._special = special
        end_ids = self._encode(self.boundaries.end)
        if not end_ids or self.decode(end_ids[:1]) not in special:
            raise ChatError(
                f"an assistant turn ends with {self.boundaries.end!r}, which does not begin with a special "
                "token of the tokenizer: the policy could not end its turn; use a tokenizer that knows it"
            )
        self.stop_id: int = end_ids[0]
        self.stop_text = self.decode(end_ids[:1])
        self.stop_ids = frozenset({self.stop_id})
        self._before_ids, self._before, self._after, self._after_ids = self._find_fixed_ids(special)
        # Siblings begin with the same prompt; rendering it is the dearest thing their engine does.
        self._prompt_ids = lru_cache(maxsize=512)(
            lambda question, context, tools: self.messages_ids(
                [*json.loads(context), {"role": "user", "content": question}], json.loads(tools)
            )
        )
        self._shown_check = lru_cache(maxsize=32)(lambda tools: ShownCheck(self.render, json.loads(tools)))

    def shown_check(self, tools: Sequence[Tool]) -> ShownCheck:
        """The check that the template shows messages with these tools. It remembers the forms it has found."""
        return self._shown_check(json.dumps(tools))

    def prompt_ids(
        self, question: str, context: Sequence[Message] = (), tools: Sequence[Tool] | None = None
    ) -> list[int]:
        """Ids up to and with the opening of the policy's first turn; `context` comes before the question.

        `tools` are shown instead of the format's own; none of them is empty.
        """
        # As text, because a cache's key must be hashable.
        return list(self._prompt_ids(question, json.dumps(context), json.dumps(tools)))

    def messages_ids(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> list[int]:
        """Ids of any messages up to and with the opening of the policy's next turn; `tools` as for a prompt.

        Raises:
            ChatError: the template cannot render them.
        """
        plain = [self._plain(with_decoded_arguments(message)) for message in messages]
        shown = self.tools if tools is None else [self._plain(tool) for tool in tools]
        return self._encode(self.render(plain, shown, gen=True))

    def tool_suffix_ids(self, texts: Sequence[str]) -> list[int]:
        """Ids from behind the policy's stop token to the opening of its next turn."""
        results = self.boundaries.between_tools.join([self._plain(text) for text in texts])
        return [*self._before_ids, *self._encode(self._before + results + self._after), *self._after_ids]

    def body_mask(self, ids: Sequence[int]) -> list[bool]:
        """Return True for the tokens of results in the ids of `tool_suffix_ids`, False for the template's around them.

        A token of both counts as of the results.
        """
        before, between, after = self._around_bodies
        start = _common(before, ids)
        end = len(ids) - _common(after[::-1], ids[start:][::-1])
        mask = [start <= k < end for k in range(len(ids))]
        for k in range(start, end - len(between) + 1) if between else ():
            if list(ids[k : k + len(between)]) == between:
                mask[k : k + len(between)] = [False] * len(between)
        return mask

    @cached_property
    def _around_bodies(self) -> tuple[list[int], list[int], list[int]]:
        """The ids before, between and after results, as samples have them in common."""
        one, other, both = (self.tool_suffix_ids(texts) for texts in (["a"], ["1"], ["a", "1"]))
        start, end = _common(one, other), _common(one[::-1], other[::-1])
        between = both[len(one) - end : len(both) - (len(other) - start)]
        return one[:start], between, one[len(one) - end :]

    def user_suffix_ids(self, text: str) -> list[int]:
        """Ids from behind the policy's stop token over a further message of the user to its next turn's
        opening.

        Raises:
            ChatError: the template rewrites earlier turns when the user speaks again.
        """
        before, after = self._user_turn
        return self._encode(self.boundaries.end[len(self.stop_text) :] + before + self._plain(text) + after)

    def suffix_ids(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> list[int]:
        """Ids from behind the policy's stop token over any further messages to its next turn's opening; `tools`
        as for a prompt.

        Raises:
            ChatError: the template rewrites earlier turns when these messages follow, or does not show them.
        """
        roles = {message["role"] for message in messages}
        if roles == {"tool"}:
            return self.tool_suffix_ids([message["content"] for message in messages])
        if roles == {"user"} and len(messages) == 1:
            return self.user_suffix_ids(messages[0]["content"])
        plain, shown = self._plain(messages), self.tools if tools is None else self._plain(tools)
        suffix = find_suffix(self.render, shown, plain, thinking=self._thinking)
        return self._encode(self.boundaries.end[len(self.stop_text) :] + suffix)

    @cached_property
    def _user_turn(self) -> tuple[str, str]:
        return find_user_turn(self.render, self.tools, thinking=self._thinking)

    def _find_fixed_ids(self, special: Collection[str]) -> tuple[list[int], str, str, list[int]]:
        """Return the text around tool results: ids and text before them, text and ids after them.

        No token crosses a special token, so the template's text up to its last special token before results,
        and from its first one after them, always gives the same ids. If samples contradict this (for example
        a tokenizer that prepends a space), there are no ids and all is text.
        """
        b = self.boundaries
        before, after = b.end[len(self.stop_text) :] + b.before_tools, b.after_tools
        begin = max((before.rfind(token) + len(token) for token in special if token in before), default=0)
        end = min((after.find(token) for token in special if token in after), default=len(after))
        before_ids, after_ids = self._encode(before[:begin]), self._encode(after[end:])
        for sample in ("", "a", " a ", "\n", "1"):
            middle = self._encode(before[begin:] + sample + after[:end])
            if [*before_ids, *middle, *after_ids] != self._encode(before + sample + after):
                return [], before, after, []
        return before_ids, before[begin:], after[:end], after_ids

    def calls(self, text: str, tools: Sequence[Tool] | None = None) -> tuple[ToolCall, ...]:
        """The tool calls of a turn's text; `tools` as for a prompt."""
        schemas = self._schemas if tools is None else schemas_of(tools)
        return parse_tool_calls(text, self.form, schemas)

    def fits(self, tools: Sequence[Tool]) -> bool:
        """Return True if the text around turns and the form of calls are the same with these tools."""
        found = find_boundaries(self.render, tools, thinking=self._thinking)
        return found == self.boundaries and turn_form(self.render, tools, found).calls == self.form.calls

    def turn_text(self, ids: Sequence[int]) -> str:
        """Return the policy's text, without its stop token."""
        ids = ids[:-1] if ids and ids[-1] == self.stop_id else ids
        return self.decode(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of any ids, special tokens shown."""
        return self.text.text(ids)

    def encode_conversation(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> tuple[list[int], list[int]]:
        """Ids and loss mask (1 on what assistants wrote, stop token included) of a finished conversation.

        Boundaries are those of a rollout: each assistant's text is encoded apart from its surroundings.

        Raises:
            ChatError: the template rewrites an earlier turn, or the parser does not read the same calls back.
        """
        tools = self.tools if tools is None else tools
        schemas = schemas_of(tools)
        given = [_mapped(with_decoded_arguments(message), _as_utf8) for message in messages]
        messages = [self._plain(message) for message in given]
        ids: list[int] = []
        mask: list[int] = []
        done = ""
        for k, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            whole = self.render(messages[: k + 1], tools)
            lead = self._lead(self.render(messages[:k], tools, gen=True), whole)
            text, stop, rest = whole[len(lead) :].rpartition(self.stop_text)
            if not stop:
                raise ChatError(f"assistant message {k} does not end with {self.stop_text!r}")
            if message.get("tool_calls"):
                written = text.replace(_CUT, "")
                if (why := difference(written, given[k]["tool_calls"], self.form, schemas)) is not None:
                    raise ChatError(f"assistant message {k}: {why}; the template writes {written[:200]!r}")
            if not lead.startswith(done):
                raise rewritten(done, lead, f"message {k}")
            context = self._encode(lead[len(done) :])
            turn = [*self._encode(text), self.stop_id]
            ids += context + turn
            mask += [0] * len(context) + [1] * len(turn)
            done = whole[: len(whole) - len(rest)]
        return ids, mask

    def _lead(self, lead: str, whole: str) -> str:
        """The lead, or without its opening where the message does not begin with it (`<reason>`)."""
        if whole.startswith(lead):
            return lead
        shorter = lead[: len(lead) - len(self.boundaries.opening)]
        if self.boundaries.opening and whole.startswith(shorter):
            return shorter
        raise rewritten(lead, whole, "an assistant turn")

    def _plain(self, value: Any) -> Any:
        """Return the content with every special token split, in every string inside it."""
        return _mapped(value, lambda text: self._cut_special(_as_utf8(text)))

    def _cut_special(self, text: str) -> str:
        """The text with a cut inside every special token."""
        if not any(token in text for token in self._special):
            return text
        longest = max(map(len, self._special))
        pieces: list[str] = []
        done = 0
        for begin in range(0, len(text), PIECE_CHARS):
            end = begin + PIECE_CHARS
            for found in self._inside_special.finditer(text, begin, end + longest):
                if found.start() >= end:
                    break
                pieces += (text[done : found.end()], _CUT)
                done = found.end()
        return "".join([*pieces, text[done:]])

    def _encode(self, text: str) -> list[int]:
        """Ids of `text`, the parts between cuts encoded apart; cuts vanish."""
        ids: list[int] = []
        for part in text.split(_CUT):
            if part:
                ids += self.tokenizer.encode(part, add_special_tokens=False)
        return ids


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of first ids that are equal."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """The same content with every string in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value


def _as_utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def token_names(tokenizer: object) -> dict[str, str]:
    """The special tokens that templates write by name."""
    return {name: getattr(tokenizer, name, None) or "" for name in ("bos_token", "eos_token")}


def turn_form(text: Rendering, tools: Sequence[Tool], boundaries: Boundaries) -> TurnForm:
    """How the turns of a template's policy are read. ChatError for calls that cannot be read back."""
    begin, end = THOUGHT
    return TurnForm(
        calls=find_call_form(text, tools, boundaries) or "hermes",
        opens_thought=boundaries.opening.rfind(begin) > boundaries.opening.rfind(end),
    )


def with_decoded_arguments(message: Message) -> Message:
    """The message with arguments of its calls that are JSON text as the objects that they are."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**function, "arguments": decoded_arguments(function["arguments"])}}
        for call in message["tool_calls"]
        for function in [call["function"]]
    ]
    return {**message, "tool_calls": calls}


def special_tokens(tokenizer: Tokenizer) -> frozenset[str]:
    """Texts that the tokenizer turns into control tokens, those without a role (eos, pad, ..) included."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return frozenset(tokenizer.all_special_tokens) | {token.content for token in added if token.special}


Decode = Callable[[list[int]], str]

PART = "\ufffd"
SAMPLE = " a b . c ! d ? e , f ' g n't h 'm i 's j 've k 're  l\n\n m\t 12"
"""Changes of other decoders between tokens: leading spaces, spaces around punctuation and in contractions."""


class TokenText:
    """Token ids to text, a token at a time. Invariant: `text(ids)` is `decode(ids)`.

    A byte-level tokenizer's text is that of its tokens' bytes, one behind the other. So where every token is
    whole characters, the text is the concatenation of the tokens' own texts, and a look-up per token gives it
    in less time than the tokenizer's decode. Where one is not (part of an emoji), its own text shows U+FFFD,
    and the tokenizer decodes the whole.
    """

    def __init__(self, decode: Decode, sample_ids: Sequence[int]) -> None:
        """`sample_ids`: those of SAMPLE. A decoder that they show not to be byte-level does all the work."""
        self._decode = decode
        self._texts = _Texts(decode)
        self.is_joined = self._join(sample_ids) == decode(list(sample_ids))
        """The text of ids is that of their tokens, one behind the other, as far as the sample shows."""

    def text(self, ids: Sequence[int]) -> str:
        text = self.sure_text(ids)
        return self._decode(list(ids)) if text is None else text

    def sure_text(self, ids: Sequence[int]) -> str | None:
        """The text of the ids where it is that in every text; None where their neighbours have a part in it."""
        text = self._join(ids) if self.is_joined else PART
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
