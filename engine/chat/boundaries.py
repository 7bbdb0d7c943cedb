"""A chat template's text around contents, found once at start-up by differencing renders.

    render([user], gen)                    = base + lead          lead = header + opening
    render([user, assistant(X)])           = base + header + X + end
    render([user, assistant(X), tool(Y)..], gen) = base + header + X + end + tools(Y..) + lead

A template for which these equations fail is refused with the difference between the two sides.
"""

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import jinja2
from jinja2 import meta
from jinja2.ext import Extension
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]
Tool = Mapping[str, Any]
T = TypeVar("T")
TEMPLATES = Path(__file__).parent / "templates"
Thinking = Literal["keep", "refuse"]
"""The policy for a template that changes `<think>` blocks of turns in later renders.

`refuse`: reject such a template. `keep`: the context keeps the policy's text, and a later render by the
template may lack a block (or show an empty one) that the context has.
"""

# Text that a template must not change: quotes, backslashes and line ends detect JSON escaping, & and <
# HTML's.
_NASTY = "marker: \"1 < 2\" & '\\'\n end"
_USER, _ASSISTANT, _TOOL = f"(user {_NASTY})", f"(assistant {_NASTY})", f"(tool {{}} {_NASTY})"
_THOUGHTFUL = f"<think>\n(thinking {_NASTY})\n</think>\n\n{_ASSISTANT}"


class ChatError(Exception):
    """The template cannot render a tool conversation; the message has the reason and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """The template's text around contents; see the module's equations."""

    header: str
    opening: str
    end: str
    before_tools: str
    between_tools: str
    after_tools: str


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


class _Generation(Extension):
    """`{% generation %}`: marks assistant text for training by transformers; the text is unchanged."""

    tags = {"generation"}  # noqa: RUF012  as the base class declares it

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)  # a scope of its own

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` in a template: its two constructors alone."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As `dict.fromkeys`."""
        return dict.fromkeys(*args)


@lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    """The template in the environment of transformers (utils/chat_template_utils.py), whose import loads
    torch; test_environment.py compares the two."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["dict"] = _Dict()
    return environment.from_string(source)


def shows_date(template: str) -> bool:
    """Whether the template asks for the date of the day. ChatError for one that cannot be read."""
    try:
        tree = _compile(template).environment.parse(template)
        return "strftime_now" in meta.find_undeclared_variables(tree)
    except (jinja2.TemplateError, TypeError) as error:  # TypeError: a tokenizer may have several by name
        raise ChatError(f"the chat template cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class Rendering:
    """A template with the special tokens and the date that it may show."""

    template: str
    bos_token: str = ""
    eos_token: str = ""
    date: str = ""

    def __call__(self, messages: Sequence[Message], tools: Sequence[Tool] | None, gen: bool = False) -> str:
        """Return the conversation as text, as transformers renders it. gen: with the generation prompt."""
        try:
            return _compile(self.template).render(
                messages=messages,
                tools=list(tools) if tools else None,
                add_generation_prompt=gen,
                bos_token=self.bos_token,
                eos_token=self.eos_token,
                strftime_now=self._strftime_now,
            )
        except (jinja2.TemplateError, TypeError) as error:  # TypeError: it adds a text to what is none
            raise ChatError(f"the chat template failed to render: {error}") from None

    def _strftime_now(self, form: str) -> str:
        """As `strftime_now` of transformers, at a fixed date: today's would give other tokens every day."""
        try:
            return datetime.fromisoformat(self.date).strftime(form)
        except ValueError:
            raise jinja2.TemplateError(
                f"it shows the date (strftime_now), and model.date = {self.date!r} is none: set model.date "
                f"to a day as {datetime.now().date().isoformat()!r}, which all prompts of the run then show"
            ) from None


def find_boundaries(text: Rendering, tools: Sequence[Tool], *, thinking: Thinking = "refuse") -> Boundaries:
    """Difference renders of marked conversations. ChatError if the template is not append-only.

    With `thinking` = "keep" it need be append-only only for turns that think, or only for turns that do not.
    ValueError for another policy.
    """
    if thinking not in get_args(Thinking):
        raise ValueError(f"thinking = {thinking!r} is neither of {', '.join(get_args(Thinking))}")
    user = {"role": "user", "content": _USER}
    if tools and text([user], tools) == text([user], None):
        raise ChatError(
            "the chat template ignores tools: use a bundled template (template = 'rstar2', 'compact', "
            "'qwen3', 'llama3' or 'smollm2'), or a .jinja with tools"
        )
    return _found(lambda said: _difference(text, tools, said), thinking)


def find_user_turn(text: Rendering, tools: Sequence[Tool], *, thinking: Thinking) -> tuple[str, str]:
    """The text before and behind a further message of the user, up to the opening of the policy's next turn.

    ChatError as `find_boundaries`: many templates drop the thinking of turns that lie before such a message.
    """
    return _found(lambda said: _user_turn(text, tools, said), thinking)


def _found(difference: Callable[[str], T], thinking: Thinking) -> T:
    """The renders of a plain turn and of a turn with a thought."""
    found: list[T] = []
    refused: list[ChatError] = []
    for said in (_ASSISTANT, _THOUGHTFUL):
        try:
            found.append(difference(said))
        except ChatError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    if refused and thinking == "refuse":
        raise ChatError(
            f"the chat template changes the thinking of a turn when it renders it again: {refused[0]}\n"
            "Use an append-only template (template = 'qwen3' writes Qwen3's prompts), or set "
            "thinking = 'keep': the context then keeps what the policy wrote, where the template would not"
        )
    return found[-1]


def find_suffix(text: Rendering, tools: Sequence[Tool], messages: Sequence[Message], *, thinking: Thinking) -> str:
    """The text from behind the end of an assistant turn over `messages` to the opening of the policy's next turn.

    ChatError as `find_boundaries`, and for a template that does not show the content of each message.
    """

    def difference(said: str) -> str:
        turn = [{"role": "user", "content": _USER}, {"role": "assistant", "content": said}]
        suffix = _after(text(turn, tools), text([*turn, *messages], tools, gen=True), "a further message")
        for message in messages:
            if message["content"].strip() not in suffix:
                raise ChatError(f"the chat template does not show a further message of the {message['role']}")
        return suffix

    return _found(difference, thinking)


def _user_turn(text: Rendering, tools: Sequence[Tool], said: str) -> tuple[str, str]:
    """Return the text around Y in render([user, assistant(X), user(Y)]), with X = `said`."""
    user, assistant = {"role": "user", "content": _USER}, {"role": "assistant", "content": said}
    further = {"role": "user", "content": _TOOL.format(1)}
    lead = _after(text([user], tools), text([user], tools, gen=True), "the generation prompt")
    before = text([user, assistant], tools)
    whole = _after(before, text([user, assistant, further], tools, gen=True), "a further user message")
    around = _around(whole, further["content"], "a further user message's content")
    if not around[1].endswith(lead):
        raise _refusal("after a further user message no turn is opened as before it", lead, around[1])
    _same(
        before + whole.removesuffix(lead) + _after(text([user], tools), before, "an assistant turn") + whole,
        text([user, *[assistant, further] * 2], tools, gen=True),
        "a second further user message",
        "the first",
    )
    return around


def _difference(text: Rendering, tools: Sequence[Tool], said: str) -> Boundaries:
    """The equations of the module, with X = `said`."""
    user = {"role": "user", "content": _USER}
    assistant = {"role": "assistant", "content": said}
    results = [{"role": "tool", "name": "t", "content": _TOOL.format(k)} for k in (1, 2)]
    base = text([user], tools)
    _around(base, _USER, "the user's content")
    lead = _after(base, text([user], tools, gen=True), "the generation prompt")
    turn = _after(base, text([user, assistant], tools), "an assistant turn")
    header, end = _around(turn, said, "the assistant's content")
    if not lead.startswith(header):
        why = "the generation prompt does not begin like an assistant turn"
        raise _refusal(why, header, lead, prefix_only=True)
    full = text([user, assistant, *results], tools, gen=True)
    after_turn = _after(base + turn, full, "a tool result")
    before, rest = _around(after_turn, _TOOL.format(1), "a tool result's content")
    between, after = _around(rest, _TOOL.format(2), "a second tool result's content")
    if not after.endswith(lead):
        raise _refusal("after tool results the template does not open a turn as before them", lead, after)
    one = before + _TOOL.format(1) + after
    _same(base + turn + one, text([user, assistant, results[0]], tools, gen=True), "one tool result", "two")
    _same(
        base + turn + one.removesuffix(lead) + turn + one,
        text([user, *[assistant, results[0]] * 2], tools, gen=True),
        "a second round of tool calls",
        "the first",
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
        raise rewritten(prefix, text, what)
    return text[len(prefix) :]


def rewritten(earlier: str, text: str, added: str) -> ChatError:
    """The refusal of a template whose `text`, with something `added`, does not begin with `earlier`."""
    why = f"the chat template rewrites earlier text when {added} is added"
    return _refusal(why, earlier, text, prefix_only=True)


def _around(text: str, marker: str, what: str) -> tuple[str, str]:
    before, found, after = text.partition(marker)
    if not found or marker in after:
        raise _refusal(f"the chat template does not show {what} exactly once and unchanged", marker, text)
    return before, after


def _same(expected: str, text: str, what: str, other: str) -> None:
    if text != expected:
        raise _refusal(
            f"the chat template renders {what} differently from {other}; it is not append-only", expected, text
        )


def _refusal(why: str, expected: str, rendered: str, *, prefix_only: bool = False) -> ChatError:
    """Return the error with a diff. `prefix_only`: text appended after `expected` is not a difference."""
    a, b = expected.splitlines(keepends=True), rendered.splitlines(keepends=True)
    lines = difflib.unified_diff(a, b[: len(a)] if prefix_only else b, "expected", "rendered", n=2)
    shown = [line.removesuffix("\n") if line.endswith("\n") else f"{line} (no newline)" for line in lines]
    return ChatError("\n".join([why, *shown]))


def load_template(name: str, tokenizer_template: str | None) -> str:
    """Jinja source of 'model' (the tokenizer's own), a bundled name, or a .jinja file."""
    names = ", ".join(bundled_templates())
    if name == "model":
        if not tokenizer_template:
            raise ChatError(f"the tokenizer has no chat template: set model.template to one of {names}")
        return tokenizer_template
    bundled = TEMPLATES / f"{name}.jinja"
    path = bundled if bundled.is_file() else Path(name)
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        raise ChatError(f"chat template {name!r} is neither 'model', nor one of {names}, nor a file") from None


def bundled_templates() -> list[str]:
    """The names that `load_template` knows."""
    return sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
