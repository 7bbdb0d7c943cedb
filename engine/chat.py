"""Messages to token ids, without ever re-tokenising what the policy wrote.

A conversation grows only at its end. The pieces around a turn are found once, by differencing renders of
the template with markers in place of contents:

    render([user], gen)                    = base + lead          lead = header + opening
    render([user, assistant(X)])           = base + header + X + end
    render([user, assistant(X), tool(Y)..], gen) = base + header + X + end + tools(Y..) + lead

The policy writes X and the stop token that begins `end`; the engine appends the rest of `end`, the tool
results and the next lead. `opening` is text the template gives the policy (`<reason>` in rStar2's).

Content is data: a special token written inside it (by a program, a dataset) is encoded as plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]
Tool = Mapping[str, Any]

# What a template must not change: quotes, backslashes and line ends show JSON escaping, & and < show HTML's.
_NASTY = "marker: \"1 < 2\" & '\\'\n end"
_USER, _ASSISTANT, _TOOL = f"(user {_NASTY})", f"(assistant {_NASTY})", f"(tool {{}} {_NASTY})"
_CUT = "\udc00"
"""Marks where a text is cut before it is encoded. A lone surrogate: no text a tokenizer accepts holds it."""
TEMPLATES = Path(__file__).parent / "templates"


class ChatError(Exception):
    """The template cannot carry a tool conversation; the message says what is wrong and what would do."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the engine uses."""

    all_special_tokens: list[str]

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str: ...


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


@lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    return environment.from_string(source)


def render(
    template: str,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    *,
    generation_prompt: bool,
    bos_token: str = "",
    eos_token: str = "",
) -> str:
    """The conversation as text, with the settings Hugging Face uses for chat templates."""
    try:
        return _compile(template).render(
            messages=messages,
            tools=list(tools) if tools else None,
            add_generation_prompt=generation_prompt,
            bos_token=bos_token,
            eos_token=eos_token,
        )
    except jinja2.TemplateError as error:
        raise ChatError(f"the chat template failed to render: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """The template's text around contents; see the module's equations."""

    header: str
    opening: str
    end: str
    before_tools: str
    between_tools: str
    after_tools: str


def find_boundaries(
    template: str, tools: Sequence[Tool], *, bos_token: str = "", eos_token: str = ""
) -> Boundaries:
    """Difference renders of marked conversations. ChatError if the template is not append-only."""
    user = {"role": "user", "content": _USER}
    assistant = {"role": "assistant", "content": _ASSISTANT}
    results = [{"role": "tool", "name": "t", "content": _TOOL.format(k)} for k in (1, 2)]

    def text(messages: Sequence[Message], tools: Sequence[Tool] | None, gen: bool = False) -> str:
        return render(
            template, messages, tools, generation_prompt=gen, bos_token=bos_token, eos_token=eos_token
        )

    base = text([user], tools)
    if base == text([user], None):
        raise ChatError(
            "the chat template ignores tools: use template = 'rstar2' or 'compact', or a .jinja with tools"
        )
    _around(base, _USER, "the user's content")
    lead = _after(base, text([user], tools, gen=True), "the generation prompt")
    turn = _after(base, text([user, assistant], tools), "an assistant turn")
    header, end = _around(turn, _ASSISTANT, "the assistant's content")
    if not lead.startswith(header):
        raise ChatError(f"the generation prompt {lead!r} does not begin like an assistant turn {header!r}")
    full = text([user, assistant, *results], tools, gen=True)
    after_turn = _after(base + turn, full, "a tool result")
    before, rest = _around(after_turn, _TOOL.format(1), "a tool result's content")
    between, after = _around(rest, _TOOL.format(2), "a second tool result's content")
    if not after.endswith(lead):
        raise ChatError(f"after tool results the template does not open a turn with {lead!r}, but {after!r}")
    one = before + _TOOL.format(1) + after
    if text([user, assistant, results[0]], tools, gen=True) != base + turn + one:
        raise ChatError(
            "the chat template renders one tool result differently from two; it is not append-only"
        )
    two_rounds = base + turn + one.removesuffix(lead) + turn + one
    if text([user, *[assistant, results[0]] * 2], tools, gen=True) != two_rounds:
        raise ChatError(
            "the chat template renders a second round of tool calls differently from the first; "
            "it is not append-only"
        )
    return Boundaries(
        header=header,
        opening=lead.removeprefix(header),
        end=end,
        before_tools=before,
        between_tools=between,
        after_tools=after,
    )


def _after(prefix: str, text: str, what: str) -> str:
    if not text.startswith(prefix):
        raise ChatError(
            f"the chat template rewrites earlier text when {what} is added: {prefix!r} became {text!r}"
        )
    return text[len(prefix) :]


def _around(text: str, marker: str, what: str) -> tuple[str, str]:
    before, found, after = text.partition(marker)
    if not found or marker in after:
        raise ChatError(f"the chat template does not show {what} exactly once and unchanged: {text!r}")
    return before, after


class ChatFormat:
    """One template, one tokenizer, one set of tools.

    Invariant: prompt_ids + the policy's ids + tool_suffix_ids + ... decodes to the render of the whole
    conversation (whitespace that the template trims off contents apart). They equal its tokenisation
    where the policy's tokens are the ones that encoding its text alone gives, no merge crosses the place
    where the policy begins to write, and no content holds a special token.
    """

    def __init__(self, tokenizer: Tokenizer, template: str, tools: Sequence[Tool]) -> None:
        self.tokenizer, self.template, self.tools = tokenizer, template, list(tools)
        self._names: dict[str, str] = {
            name: getattr(tokenizer, name, None) or "" for name in ("bos_token", "eos_token")
        }
        self.boundaries = find_boundaries(template, tools, **self._names)
        special = special_tokens(tokenizer)
        # Before the second character of every special token that begins here.
        self._inside_special = re.compile(
            f"(?={'|'.join(map(re.escape, sorted(special))) or '(?!)'})(.)", re.DOTALL
        )
        end_ids = self._encode(self.boundaries.end)
        if not end_ids or self.decode(end_ids[:1]) not in special:
            raise ChatError(
                f"an assistant turn ends with {self.boundaries.end!r}, which does not begin with a special "
                "token of the tokenizer: the policy could not end its turn; use a tokenizer that knows it"
            )
        self.stop_id: int = end_ids[0]
        self.stop_text = self.decode(end_ids[:1])
        self.stop_ids = frozenset({self.stop_id})

    def prompt_ids(self, question: str) -> list[int]:
        """Ids up to and with the opening of the policy's first turn."""
        messages = [{"role": "user", "content": self._plain(question)}]
        return self._encode(self._render(messages, self.tools, generation_prompt=True))

    def tool_suffix_ids(self, texts: Sequence[str]) -> list[int]:
        """Ids from behind the policy's stop token to the opening of its next turn."""
        b = self.boundaries
        results = b.between_tools.join(self._plain(text) for text in texts)
        return self._encode(b.end[len(self.stop_text) :] + b.before_tools + results + b.after_tools)

    def turn_text(self, ids: Sequence[int]) -> str:
        """What the policy wrote, without its stop token."""
        ids = ids[:-1] if ids and ids[-1] == self.stop_id else ids
        return self.decode(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of any ids, special tokens shown."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def encode_conversation(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> tuple[list[int], list[int]]:
        """Ids and loss mask (1 on what assistants wrote, stop token included) of a finished conversation.

        Boundaries are those of a rollout: each assistant's text is encoded apart from its surroundings.
        """
        tools = self.tools if tools is None else tools
        messages = [self._plain(message) for message in messages]
        ids: list[int] = []
        mask: list[int] = []
        done = ""
        for k, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            whole = self._render(messages[: k + 1], tools, generation_prompt=False)
            lead = self._lead(self._render(messages[:k], tools, generation_prompt=True), whole)
            text, stop, rest = whole[len(lead) :].rpartition(self.stop_text)
            if not stop:
                raise ChatError(f"assistant message {k} does not end with {self.stop_text!r}")
            if not lead.startswith(done):
                raise ChatError(f"the chat template rewrites earlier text when message {k} is added")
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
        raise ChatError(f"the chat template rewrites earlier text: {lead[-80:]!r} against {whole[:80]!r}...")

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], *, generation_prompt: bool) -> str:
        return render(self.template, messages, tools, generation_prompt=generation_prompt, **self._names)

    def _plain(self, value: Any) -> Any:
        """The same content with a cut inside every special token, wherever a string lies in it."""
        if isinstance(value, str):
            text = value.encode("utf-8", "replace").decode("utf-8")
            return self._inside_special.sub(rf"\1{_CUT}", text)
        if isinstance(value, Mapping):
            return {key: self._plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        return value

    def _encode(self, text: str) -> list[int]:
        """Ids of `text`, the parts between cuts encoded apart; cuts vanish."""
        parts = [part for part in text.split(_CUT) if part]
        return [token for part in parts for token in self.tokenizer.encode(part, add_special_tokens=False)]


def special_tokens(tokenizer: Tokenizer) -> frozenset[str]:
    """Texts that the tokenizer turns into control tokens, those without a role (eos, pad, ..) included."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return frozenset(tokenizer.all_special_tokens) | {token.content for token in added if token.special}


def load_template(name: str, tokenizer_template: str | None) -> str:
    """Jinja source of 'model' (the tokenizer's own), a bundled name, or a .jinja file."""
    if name == "model":
        if not tokenizer_template:
            raise ChatError("the tokenizer has no chat template: set model.template to 'rstar2' or 'compact'")
        return tokenizer_template
    bundled = TEMPLATES / f"{name}.jinja"
    path = bundled if bundled.is_file() else Path(name)
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        known = ", ".join(sorted(p.stem for p in TEMPLATES.glob("*.jinja")))
        raise ChatError(
            f"chat template {name!r} is neither 'model', nor one of {known}, nor a file"
        ) from None
