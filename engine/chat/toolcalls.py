"""The one reader of a turn: spoken text, thoughts and calls.

    turn ──> thought   `<think>` to `</think>`, or to the turn's end
         ├─> call      in the form of TurnForm.calls (callforms.py)
         └─> said      the rest

Rollout loop, judges, server and viewer split a turn here. A call or an answer within a thought is a draft:
it is neither executed nor judged, unless `TurnForm.skips_thoughts` is off. `<reason>` of the rstar2 template
is not a thought: its policy calls tools inside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocstar.engine.chat.callforms import CLOSE, FORMS, MAX_DEPTH, OPEN, Schemas, WrittenCall
from rocstar.engine.types import ToolCall, Turn, TurnForm

__all__ = [
    "CLOSE",
    "DEFAULT",
    "MAX_DEPTH",
    "OPEN",
    "THOUGHT",
    "parse_tool_calls",
    "said",
    "tool_call_spans",
    "without_tool_calls",
]

THOUGHT = ("<think>", "</think>")
DEFAULT = TurnForm()
_NONE: Schemas = {}
_TAGS = {name: FORMS[name].opens[0] for name in ("hermes", "lfm", "mistral")}
_BY_NAME = {name: TurnForm(calls=name) for name in FORMS}


def parse_tool_calls(
    text: str, form: TurnForm | None = None, schemas: Schemas = _NONE
) -> tuple[ToolCall, ...]:
    """Every call of a turn in the order written; `schemas` give the types of parameters.

    Without a form, for a text whose template is not known, the tag of the first call says which it is.
    """
    found, _ = _read(text, form or _form_of(text), schemas)
    return tuple([written.call for written in found])


def tool_call_spans(text: str, form: TurnForm = DEFAULT) -> tuple[tuple[int, int], ...]:
    """Characters [start, end) of every call in the order written; one that was not closed reaches to the next
    one, or to the end of the text."""
    found, _ = _read(text, form)
    edges = [*(written.start for written in found), len(text)]
    return tuple(
        (written.start, written.end if written.closed else following)
        for written, following in zip(found, edges[1:], strict=True)
    )


def said(written: str | Sequence[Turn]) -> str:
    """Return the spoken text of turns, or of one turn's text: without thoughts and without closed calls."""
    if isinstance(written, str):
        return _without(written, _form_of(written), thoughts=True)
    return "\n".join([_without(turn.text, turn.form, thoughts=True) for turn in written])


def without_tool_calls(text: str, form: TurnForm = DEFAULT) -> str:
    """The text with every closed call cut out."""
    return _without(text, form, thoughts=False)


def _form_of(text: str) -> TurnForm:
    if "<" not in text and "[" not in text:
        return DEFAULT
    found = [(at, name) for name, tag in _TAGS.items() if (at := text.find(tag)) >= 0]
    at, name = min(found, default=(0, "hermes"))
    if name == "hermes" and text[at + len(OPEN) :].lstrip().startswith("<function="):
        name = "xml"
    return _BY_NAME[name]


def _without(text: str, form: TurnForm, *, thoughts: bool) -> str:
    calls, drafts = _read(text, form, _NONE, to_end=thoughts)
    cut = [(call.start, call.end) for call in calls if call.closed]
    if drafts and thoughts:
        cut = sorted([*cut, *drafts])
    kept, end = [], 0
    for start, stop in cut:
        kept.append(text[end:start])
        end = stop
    return "".join([*kept, text[end:]]) if kept else text


def _read(
    text: str, form: TurnForm, schemas: Schemas = _NONE, *, to_end: bool = False
) -> tuple[list[WrittenCall], list[tuple[int, int]]]:
    """The calls, and the thoughts [start, end) before them; `to_end`: the thoughts behind them, too."""
    calls, at, may_call, skips = FORMS[form.calls], 0, True, form.skips_thoughts
    tag, is_bare = calls.opens[0], calls.at_start
    found: list[WrittenCall] = []
    thoughts: list[tuple[int, int]] = []
    if skips and form.opens_thought:
        at = _thought_end(text, 0)
        thoughts.append((0, at))
    while True:
        if is_bare:
            start = calls.start_in(text, at) if may_call else -1
        elif (start := text.find(tag[0], at)) >= 0:
            start = text.find(tag, start)
        if skips and (start >= 0 or to_end or is_bare):
            stop = start if start >= 0 else len(text)
            begin = text.find("<", at, stop)  # one character is found many times faster than a tag
            if begin >= 0 and (begin := text.find(THOUGHT[0], begin, stop)) >= 0:
                may_call &= not text[at:begin].strip()
                at = _thought_end(text, begin + len(THOUGHT[0]))
                thoughts.append((begin, at))
                continue
        if start < 0:
            return found, thoughts
        written = calls.read(text, start, schemas)
        found += written
        may_call = False
        at = written[-1].end if written else start + (0 if is_bare else len(tag))


def _thought_end(text: str, at: int) -> int:
    close = text.find(THOUGHT[1], at)
    return len(text) if close < 0 else close + len(THOUGHT[1])
