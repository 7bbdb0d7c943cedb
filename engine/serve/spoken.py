"""From the tokens of a policy to what it says, thinks and calls, a token at a time.

    token -> TurnText -> StopTexts -> Spoken -> content | reasoning_content | held until the turn ends

Each stage holds back only what may yet become something else: the rest of a character, the beginning of a
stop text or of a tag. Where the text is cut into pieces changes nothing of what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rocstar.engine.chat.token_text import PART
from rocstar.engine.chat.toolcalls import OPEN, without_tool_calls
from rocstar.engine.serve.parts import Kind

MAX_OPEN_TOKENS = 64
"""So many tokens in a row without a whole character are shown as they are."""
THINKING = {"<think>": "</think>", "<reason>": "</reason>"}
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

    def __init__(self, *, with_calls: bool) -> None:
        """with_calls: `<tool_call>` begins what is no text."""
        self._with_calls = with_calls
        self._buffer = ""
        self._held: str | None = None
        """The text from the turn's first tool call on."""
        self._thought_ends: str | None = None
        """The tag that ends the present thought."""
        self._space: dict[Kind, str] = {}
        self._is_fresh: dict[Kind, bool] = {}
        self._has_text: set[Kind] = set()

    def begin_turn(self, opening: str) -> None:
        """`opening`: what the template writes at the beginning of the policy's turn."""
        self._thought_ends, self._held, self._buffer = None, None, ""
        begins, ends = thought_tags(opening)
        if opening.rfind(begins) > opening.rfind(ends):
            self._thought_ends = ends
        self._space = {"content": "", "reasoning_content": ""}
        self._is_fresh = {"content": True, "reasoning_content": True}

    def add(self, text: str) -> Iterator[tuple[Kind, str]]:
        """What the next piece of the turn's text says."""
        if self._held is not None:
            self._held += text
            return
        self._buffer += text
        if "<" not in self._buffer:  # no tag begins; nearly always
            text, self._buffer = self._buffer, ""
            yield from self._say(text)
            return
        while True:
            tags = self._tags()
            at, tag = min(
                ((self._buffer.find(tag), tag) for tag in tags if tag in self._buffer), default=(-1, "")
            )
            if at < 0:
                keep = _open_end(self._buffer, tags)
                at = len(self._buffer) - keep
                yield from self._say(self._buffer[:at])
                self._buffer = self._buffer[at:]
                return
            yield from self._say(self._buffer[:at])
            if tag == OPEN:
                self._held, self._buffer = self._buffer[at:], ""
                return
            self._buffer = self._buffer[at + len(tag) :]
            self._thought_ends = THINKING.get(tag)

    def end_turn(self) -> Iterator[tuple[Kind, str]]:
        """What was held back of the turn, its calls apart."""
        if self._held is not None:
            self._buffer, self._held = without_tool_calls(self._held), None
        # No tag can be open any more, and `<tool_call>` that is left is a mention.
        while self._buffer:
            tags = [tag for tag in self._tags() if tag != OPEN]
            at, tag = min(
                ((self._buffer.find(tag), tag) for tag in tags if tag in self._buffer), default=(-1, "")
            )
            yield from self._say(self._buffer if at < 0 else self._buffer[:at])
            self._buffer = "" if at < 0 else self._buffer[at + len(tag) :]
            if at >= 0:
                self._thought_ends = THINKING.get(tag)

    def _tags(self) -> list[str]:
        """What would end the present kind of text."""
        tags = list(THINKING) if self._thought_ends is None else [self._thought_ends]
        return [*tags, OPEN] if self._with_calls else tags

    def _say(self, text: str) -> Iterator[tuple[Kind, str]]:
        kind: Kind = "content" if self._thought_ends is None else "reasoning_content"
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


def _open_end(text: str, tags: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a tag."""
    longest = max(map(len, tags), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        end = text[len(text) - size :]
        if any(tag.startswith(end) for tag in tags):
            return size
    return 0
