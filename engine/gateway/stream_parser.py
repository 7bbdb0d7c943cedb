"""Split the tokens of a policy into content, thinking and tool calls, a token at a time.

    token -> TurnText -> StopSequences -> StreamParser -> content | reasoning_content | held to the turn's end

Each stage holds back only text that may become something else: the rest of a character, the beginning of a
stop sequence or of a tag. The output does not depend on the chunks of the input.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from rocstar.engine.chat.callforms import FORMS
from rocstar.engine.chat.chat import PART
from rocstar.engine.chat.toolcalls import THOUGHT, without_tool_calls
from rocstar.engine.gateway.stream_parts import Kind
from rocstar.engine.types import TurnForm

MAX_OPEN_TOKENS = 64
"""The number of tokens without a complete character after which the text is emitted anyway."""

THINKING = {THOUGHT[0]: THOUGHT[1], "<reason>": "</reason>"}
"""The tags that open thinking, with their closing tags."""


@cache
def thought_tags(opening: str) -> tuple[str, str]:
    """The tags around a thought: those that the template opens a turn with, or the first that are known."""
    for begin, end in THINKING.items():
        if opening.rfind(begin) > opening.rfind(end):
            return begin, end
    return next(iter(THINKING.items()))


class TurnText:
    """The text of one turn, decoded token by token.

    Invariant: the results of `add`, joined, are a prefix of the text of all tokens, and with `rest` they
        are the whole text, if the tokenizer's text of a prefix is a prefix of the text.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], sure_text: Callable[[Sequence[int]], str | None]
    ) -> None:
        """sure_text: returns the text of tokens in any context, or None if it depends on the context."""
        self._decode, self._sure_text = decode, sure_text
        self._ids: list[int] = []
        self._num_returned = 0
        """The number of `_ids` whose text was returned; they stay, because a token's text may depend on its
        neighbour."""

    def add(self, tokens: Sequence[int]) -> str:
        """The text that is sure now."""
        if self._num_returned == len(self._ids) and (sure := self._sure_text(tokens)) is not None:
            self._ids, self._num_returned = [], 0
            return sure
        if len(tokens) != 1:
            return "".join([self.add([token]) for token in tokens])
        self._ids += tokens
        text = self._decode(self._ids)
        is_open = text.endswith(PART) and len(self._ids) - self._num_returned < MAX_OPEN_TOKENS
        return "" if is_open else self._take(text)

    def rest(self) -> str:
        """Return the remaining text after the last token."""
        return self._take(self._decode(self._ids)) if self._num_returned < len(self._ids) else ""

    def _take(self, text: str) -> str:
        before = self._decode(self._ids[: self._num_returned]) if self._num_returned else ""
        self._ids = self._ids[self._num_returned :]
        self._num_returned = len(self._ids)
        return text[len(before) :]


class StopSequences:
    """Truncates a text before its first complete stop sequence.

    Invariant: the output does not depend on the chunks of the input.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = ""
        """The stop sequence that truncated the text."""

    def add(self, text: str) -> str:
        """The part that is before a stop text for sure. Once one is found, nothing."""
        if self.found or not self._stops:
            return "" if self.found else text
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:  # the first complete one, so that later chunks cannot change the result
            self._held = ""
            _, at, self.found = min(found)
            return text[:at]
        keep = _partial_tag_length(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """Return the text held back, and reset."""
        held, self._held = self._held, ""
        return held


class StreamParser:
    """Splits the text of a policy's turns into content and thinking, without tool calls.

    Invariant: the output of a turn depends on its text and on the previous turns, not on the chunks.
        White space around the content and the thinking of a turn is removed; turns are separated by a
        newline.
    """

    def __init__(self, form: TurnForm | None) -> None:
        """form: of the turns; None where calls are text."""
        self._form = form
        self._calls = FORMS[form.calls] if form is not None else None
        opens = self._calls.opens if self._calls else ()
        self._mark = "<" if all(tag.startswith("<") for tag in opens) else ""
        """The first character of every tag, or "" if they differ."""
        self._buffer = ""
        self._held: str | None = None
        """The text from the turn's first tool call on."""
        self._ends: list[str] = []
        """The tags that end the present thoughts, the innermost last."""
        self._has_spoken_text = False
        """Text of the present turn came out that is not in a thought."""
        self._space: dict[Kind, str] = {}
        self._at_start: dict[Kind, bool] = {}
        self._has_text: set[Kind] = set()

    def begin_turn(self, opening: str) -> None:
        """Start a turn. `opening`: the template's text at its beginning."""
        begins, ends = thought_tags(opening)
        self._ends = [ends] if opening.rfind(begins) > opening.rfind(ends) else []
        self._held, self._buffer, self._has_spoken_text = None, "", False
        self._space = {"content": "", "reasoning_content": ""}
        self._at_start = {"content": True, "reasoning_content": True}

    def add(self, text: str) -> Iterator[tuple[Kind, str]]:
        """Yield the parts of the next chunk."""
        if self._held is not None:
            self._held += text
            return
        self._buffer += text
        if self._mark and self._mark not in self._buffer:  # no tag begins; nearly always
            text, self._buffer = self._buffer, ""
            yield from self._emit_text(text)
            return
        while self._buffer:
            calls = self._call_tags()
            tags = [*self._thought_tags(), *calls]
            at, tag = _find_first(self._buffer, tags)
            if at < 0:
                at = len(self._buffer) - _partial_tag_length(self._buffer, tags)
            yield from self._emit_text(self._buffer[:at])
            self._buffer = self._buffer[at:]
            if not tag:
                return
            if tag not in calls:
                self._consume_tag(tag)
            elif tag in self._call_tags():  # not after text, if calls must be the whole turn
                self._held, self._buffer = self._buffer, ""
                return

    def end_turn(self, *, with_calls: bool = False) -> Iterator[tuple[Kind, str]]:
        """Yield the text held back, without calls unless `with_calls`."""
        if self._held is not None and self._form is not None:
            form = replace(self._form, opens_thought=False)
            self._buffer = self._held if with_calls else without_tool_calls(self._held, form)
            self._held = None
        while self._buffer:  # no tag can be open any more, and a call's tag that is left is a mention
            at, tag = _find_first(self._buffer, self._thought_tags())
            yield from self._emit_text(self._buffer if at < 0 else self._buffer[:at])
            self._buffer = "" if at < 0 else self._buffer[at:]
            if tag:
                self._consume_tag(tag)

    def _thought_tags(self) -> list[str]:
        """Return the tags that can open or close thinking here: `<think>` can open within `<reason>`."""
        if not self._ends:
            return list(THINKING)
        return [THOUGHT[1]] if self._ends[-1] == THOUGHT[1] else [self._ends[-1], THOUGHT[0]]

    def _call_tags(self) -> Sequence[str]:
        """Return the tags that can open a call here."""
        if self._form is None or self._calls is None or (self._calls.at_start and self._has_spoken_text):
            return ()
        is_hidden = self._form.skips_thoughts and self._ends[-1:] == [THOUGHT[1]]
        return () if is_hidden else self._calls.opens

    def _consume_tag(self, tag: str) -> None:
        """Consume a thinking tag at the start of the buffer."""
        self._buffer = self._buffer[len(tag) :]
        if tag in THINKING:
            self._ends.append(THINKING[tag])
        else:
            self._ends.pop()

    def _emit_text(self, text: str) -> Iterator[tuple[Kind, str]]:
        kind: Kind = "reasoning_content" if self._ends else "content"
        text = self._space[kind] + text
        if self._at_start[kind]:
            text = text.lstrip()
        said = text.rstrip()
        self._space[kind] = text[len(said) :]
        if not said:
            return
        if self._at_start[kind] and kind in self._has_text:
            said = "\n" + said
        self._at_start[kind] = False
        if not self._ends or self._ends[-1] != THOUGHT[1]:
            self._has_spoken_text = True
        self._has_text.add(kind)
        yield kind, said


def _find_first(text: str, tags: Sequence[str]) -> tuple[int, str]:
    """The first of the tags in the text, and its place; -1 and nothing if there is none."""
    first, found = -1, ""
    for tag in tags:
        at = text.find(tag)
        if at >= 0 and (first < 0 or (at, tag) < (first, found)):
            first, found = at, tag
    return first, found


def _partial_tag_length(text: str, tags: Sequence[str]) -> int:
    """Return how many characters at the end of `text` may be the start of a tag."""
    longest = max(map(len, tags), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        end = text[len(text) - size :]
        if any(tag.startswith(end) for tag in tags):
            return size
    return 0
