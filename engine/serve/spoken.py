"""From the tokens of a policy to what it says, thinks and calls, a token at a time.

    token -> TurnText -> StopTexts -> Spoken -> content | reasoning_content | held until the turn ends

Each stage holds back only what may yet become something else: the rest of a character, the beginning of a
stop text or of a tag. Where the text is cut into pieces changes nothing of what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rocstar.engine.chat.callforms import FORMS
from rocstar.engine.chat.token_text import PART
from rocstar.engine.chat.toolcalls import THOUGHT, without_tool_calls
from rocstar.engine.serve.parts import Kind
from rocstar.engine.types import TurnForm

MAX_OPEN_TOKENS = 64
"""So many tokens in a row without a whole character are shown as they are."""
THINKING = {THOUGHT[0]: THOUGHT[1], "<reason>": "</reason>"}
"""What opens a thought, and what ends it."""


def thought_tags(opening: str) -> tuple[str, str]:
    """The tags around a thought: those that the template opens a turn with, or the first that are known."""
    for begin, end in THINKING.items():
        if opening.rfind(begin) > opening.rfind(end):
            return begin, end
    return next(iter(THINKING.items()))


class TurnText:
    """The text of one turn as its tokens come.

    Invariant: what `add` returned so far, joined, is the beginning of the text of all tokens, and with
    `rest` all of it, for a tokenizer whose text of more tokens begins with that of fewer.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        of_token: Callable[[int], str | None] = lambda token: None,
    ) -> None:
        """of_token: the text of one token wherever it stands; None where that cannot be told."""
        self._decode, self._of_token = decode, of_token
        self._ids: list[int] = []
        self._told = 0
        """Of `_ids`, whose text was returned; they stay, as a token's text may depend on its neighbour."""

    def add(self, token: int) -> str:
        """The text that is sure now."""
        if self._told == len(self._ids) and (sure := self._of_token(token)) is not None:
            self._ids, self._told = [token], 1
            return sure
        self._ids.append(token)
        text = self._decode(self._ids)
        is_open = text.endswith(PART) and len(self._ids) - self._told < MAX_OPEN_TOKENS
        return "" if is_open else self._take(text)

    def rest(self) -> str:
        """What is left when no more tokens come."""
        return self._take(self._decode(self._ids)) if self._told < len(self._ids) else ""

    def _take(self, text: str) -> str:
        before = self._decode(self._ids[: self._told]) if self._told else ""
        self._ids = self._ids[self._told :]
        self._told = len(self._ids)
        return text[len(before) :]


class StopTexts:
    """Ends a text where the first of some stop texts is whole; it is not part of what comes out.

    Invariant: what comes out does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_cut = False

    def add(self, text: str) -> str:
        """The part that is before a stop text for sure. Once `is_cut`, nothing."""
        if self.is_cut or not self._stops:
            return "" if self.is_cut else text
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:  # the one that is whole first, so that no later piece changes which it is
            self.is_cut, self._held = True, ""
            return text[: min(found)[1]]
        keep = _open_end(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """What is left when no more comes; the next text begins anew."""
        held, self._held = self._held, ""
        return held


class Spoken:
    """What a policy says and thinks in its turns; tool calls are left out.

    Invariant: what comes out of a turn depends on its text and on the turns before, and not on how the text
    is cut into pieces. White space around what is said in a turn, or thought, is left out; turns are set
    apart by a line end.
    """

    def __init__(self, form: TurnForm | None) -> None:
        """form: of the turns; None where calls are text."""
        self._form = form
        self._calls = FORMS[form.calls] if form is not None else None
        opens = self._calls.opens if self._calls else ()
        self._mark = "<" if all(tag.startswith("<") for tag in opens) else ""
        """With which every tag begins; empty if not all begin alike."""
        self._buffer = ""
        self._held: str | None = None
        """The text from the turn's first tool call on."""
        self._ends: list[str] = []
        """The tags that end the present thoughts, the innermost last."""
        self._has_said = False
        """Text of the present turn came out that is not in a thought."""
        self._space: dict[Kind, str] = {}
        self._is_fresh: dict[Kind, bool] = {}
        self._has_text: set[Kind] = set()

    def begin_turn(self, opening: str) -> None:
        """`opening`: what the template writes at the beginning of the policy's turn."""
        begins, ends = thought_tags(opening)
        self._ends = [ends] if opening.rfind(begins) > opening.rfind(ends) else []
        self._held, self._buffer, self._has_said = None, "", False
        self._space = {"content": "", "reasoning_content": ""}
        self._is_fresh = {"content": True, "reasoning_content": True}

    def add(self, text: str) -> Iterator[tuple[Kind, str]]:
        """What the next piece of the turn's text says."""
        if self._held is not None:
            self._held += text
            return
        self._buffer += text
        if self._mark and self._mark not in self._buffer:  # no tag begins; nearly always
            text, self._buffer = self._buffer, ""
            yield from self._say(text)
            return
        while self._buffer:
            calls = self._call_tags()
            tags = [*self._thought_tags(), *calls]
            at, tag = _first(self._buffer, tags)
            if at < 0:
                at = len(self._buffer) - _open_end(self._buffer, tags)
            yield from self._say(self._buffer[:at])
            self._buffer = self._buffer[at:]
            if not tag:
                return
            if tag not in calls:
                self._pass(tag)
            elif tag in self._call_tags():  # not where text was said before a call of the whole turn
                self._held, self._buffer = self._buffer, ""
                return

    def end_turn(self) -> Iterator[tuple[Kind, str]]:
        """What was held back of the turn, its calls apart."""
        if self._held is not None and self._form is not None:
            form = replace(self._form, opens_thought=False)
            self._buffer, self._held = without_tool_calls(self._held, form), None
        while self._buffer:  # no tag can be open any more, and a call's tag that is left is a mention
            at, tag = _first(self._buffer, self._thought_tags())
            yield from self._say(self._buffer if at < 0 else self._buffer[:at])
            self._buffer = "" if at < 0 else self._buffer[at:]
            if tag:
                self._pass(tag)

    def _thought_tags(self) -> list[str]:
        """What may begin or end a thought here: `<think>` may begin within `<reason>`."""
        if not self._ends:
            return list(THINKING)
        return [THOUGHT[1]] if self._ends[-1] == THOUGHT[1] else [self._ends[-1], THOUGHT[0]]

    def _call_tags(self) -> Sequence[str]:
        """What may begin a call here."""
        if self._form is None or self._calls is None or (self._calls.at_start and self._has_said):
            return ()
        is_hidden = self._form.skips_thoughts and self._ends[-1:] == [THOUGHT[1]]
        return () if is_hidden else self._calls.opens

    def _pass(self, tag: str) -> None:
        """Go on behind the tag of a thought, with which the buffer begins."""
        self._buffer = self._buffer[len(tag) :]
        if tag in THINKING:
            self._ends.append(THINKING[tag])
        else:
            self._ends.pop()

    def _say(self, text: str) -> Iterator[tuple[Kind, str]]:
        kind: Kind = "reasoning_content" if self._ends else "content"
        text = self._space[kind] + text
        if self._is_fresh[kind]:
            text = text.lstrip()
        said = text.rstrip()
        self._space[kind] = text[len(said) :]
        if not said:
            return
        if self._is_fresh[kind] and kind in self._has_text:
            said = "\n" + said
        self._is_fresh[kind] = False
        if not self._ends or self._ends[-1] != THOUGHT[1]:
            self._has_said = True
        self._has_text.add(kind)
        yield kind, said


class AsWritten:
    """A turn's text as it is; the other way than `Spoken`."""

    def begin_turn(self, opening: str) -> None:
        """Nothing of a turn is set apart."""

    def add(self, text: str) -> Iterator[tuple[Kind, str]]:
        """The text."""
        if text:
            yield "content", text

    def end_turn(self) -> Iterator[tuple[Kind, str]]:
        """Nothing was held back."""
        yield from ()


def _first(text: str, tags: Sequence[str]) -> tuple[int, str]:
    """The first of the tags in the text, and its place; -1 and nothing if there is none."""
    return min(((at, tag) for tag in tags if (at := text.find(tag)) >= 0), default=(-1, ""))


def _open_end(text: str, tags: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a tag."""
    longest = max(map(len, tags), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        end = text[len(text) - size :]
        if any(tag.startswith(end) for tag in tags):
            return size
    return 0
