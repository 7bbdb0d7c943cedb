"""The one reader of a turn: spoken text, thoughts and calls.

    turn ──> thought   `<think>` to `</think>`, or to the turn's end
         ├─> call      in the form of TurnForm.calls (callforms.py)
         └─> said      the rest

Rollout loop, judges, server and viewer split a turn here. A call or an answer within a thought is a draft:
it is neither executed nor judged, unless `TurnForm.skips_thoughts` is off. `<reason>` of the rstar2 template
is not a thought: its policy calls tools inside it.
"""

import re
from collections.abc import Sequence

from rocstar.engine.chat.callforms import FORMS, OPEN, Schemas, WrittenCall
from rocstar.engine.types import ToolCall, Turn, TurnForm

THOUGHT = ("<think>", "</think>")
DEFAULT = TurnForm()
_NONE: Schemas = {}
_BY_NAME = {name: TurnForm(calls=name) for name in FORMS}
_BY_TAG = {FORMS[name].opens[0]: _BY_NAME[name] for name in ("hermes", "lfm", "mistral")}


def _any_of(*texts: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


_TAG = _any_of(*_BY_TAG)
_BOXED = re.compile(r"\\boxed\{")
_BEGINS = {name: _any_of(THOUGHT[0], *form.opens) for name, form in FORMS.items()}
"""By call form: what every turn with a thought or a call has; one pattern, as fast as that of one tag."""
_MARKS = {
    skips: {
        name: _any_of(*(THOUGHT[:1] if skips else ()), *(() if form.at_start else form.opens))
        for name, form in FORMS.items()
    }
    for skips in (True, False)
}
"""Whether thoughts are skipped -> call form -> where a thought, or a call within the turn, begins."""


def parse_tool_calls(text: str, form: TurnForm | None = None, schemas: Schemas = _NONE) -> tuple[ToolCall, ...]:
    """Every call of a turn in the order written; `schemas` give the types of parameters.

    Without a form, for a text whose template is not known, the tag of the first call says which it is.
    """
    form = form or _form_of(text)
    if _is_plain(text, form):
        return ()
    found, _ = _read(text, form, schemas)
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


def spoken_text(written: str | Sequence[Turn]) -> str:
    """Return the spoken text of turns, or of one turn's text: without thoughts and without closed calls."""
    if isinstance(written, str):
        return without_tool_calls(written, _form_of(written), cuts_thoughts=True)
    return "\n".join([without_tool_calls(turn.text, turn.form, cuts_thoughts=True) for turn in written])


def final_answer(text: str) -> str:
    """Return the final answer in a text: the last boxed value, else the last line."""
    begins = list(_BOXED.finditer(text))
    if begins:
        at, depth = begins[-1].end(), 1
        for end in range(at, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if not depth:
                return text[at:end].strip()
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _form_of(text: str) -> TurnForm:
    first = _TAG.search(text)
    if first is None:
        return DEFAULT
    if first[0] == OPEN and text[first.end() :].lstrip().startswith("<function="):
        return _BY_NAME["xml"]
    return _BY_TAG[first[0]]


def _is_plain(text: str, form: TurnForm) -> bool:
    """Whether a turn certainly has neither call nor thought."""
    return not form.opens_thought and _BEGINS[form.calls].search(text) is None


def without_tool_calls(text: str, form: TurnForm = DEFAULT, *, cuts_thoughts: bool = False) -> str:
    """Return the text without its closed calls, and without its thoughts if asked."""
    if _is_plain(text, form):
        return text
    calls, drafts = _read(text, form)
    cut = [(call.start, call.end) for call in calls if call.closed]
    if drafts and cuts_thoughts:
        cut = sorted([*cut, *drafts]) if cut else drafts
    kept, end = [], 0
    for start, stop in cut:
        kept.append(text[end:start])
        end = stop
    kept.append(text[end:])
    return "".join(kept)


def _read(text: str, form: TurnForm, schemas: Schemas = _NONE) -> tuple[list[WrittenCall], list[tuple[int, int]]]:
    """The calls and the thoughts [start, end)."""
    mark, at = _MARKS[form.skips_thoughts][form.calls], 0
    thoughts: list[tuple[int, int]] = []
    if form.skips_thoughts and form.opens_thought:
        at = _thought_end(text, 0)
        thoughts.append((0, at))
    first, calls = mark.search(text, at), FORMS[form.calls]
    found, may_call = list[WrittenCall](), calls.at_start
    while True:
        start = first.start() if first else len(text)
        begin = len(text) - len(text[at:].lstrip()) if may_call else start
        if begin < start and text.startswith(calls.opens, begin):
            first, start = None, begin
        elif first is None:
            return found, thoughts
        elif first[0] == THOUGHT[0]:
            may_call = may_call and not text[at:start].strip()
            at = _thought_end(text, first.end())
            thoughts.append((start, at))
            first = mark.search(text, at)
            continue
        written = calls.read(text, start, schemas)
        found += written
        may_call = False
        at = written[-1].end if written else first.end() if first else start
        first = mark.search(text, at)


def _thought_end(text: str, at: int) -> int:
    close = text.find(THOUGHT[1], at)
    return len(text) if close < 0 else close + len(THOUGHT[1])
