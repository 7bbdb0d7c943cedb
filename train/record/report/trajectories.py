"""How a trajectory looks on the report. All its text is untrusted and escaped."""

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from markupsafe import Markup

from rocstar.engine.chat.toolcalls import tool_call_spans
from rocstar.engine.types import TurnForm
from rocstar.train.record.report.page import MAX_TEXT, clipped, rendered
from rocstar.train.record.report.sample import Record, calls_of, is_correct, reward_of

WHY = {
    "kept": "Kept: the learner saw it.",
    "dropped_positive": "Dropped by RoC: correct, but not drawn among the correct siblings.",
    "dropped_negative": "Dropped: wrong, and not drawn among the wrong siblings.",
    "no_signal": "Not used: all scored siblings of the group have the same reward, so no advantage exists.",
    "failed": "Not used: lost to a failure of the system, so it has no reward.",
}
CODE = "code"
"""The argument that is a program, whatever the tool."""


EVALUATED = "evaluated"
"""For an attempt of an evaluation, which no learner uses."""


def trajectory_html(
    record: Record,
    *,
    is_open: bool = False,
    lead: str | None = None,
    anchor: str = "",
    address: str = "",
    more: Mapping[str, object] | None = None,
    max_text: int = MAX_TEXT,
) -> Markup:
    """One trajectory as a folding card.

    Args:
        record: a record of version 1. A turn may have a `number`, where it does not follow the one before.
        is_open: whether it is unfolded.
        lead: the first word of its line; default: its step.
        anchor: its name in links on the page.
        address: link to its tokens and its group; default: none.
        more: further facts by name.
        max_text: characters of each text that are shown.
    """
    reward, correct = reward_of(record), is_correct(record)
    verdict, style = (
        ("no reward", "quiet") if reward is None else ("correct", "good") if correct else ("wrong", "bad")
    )
    decision, task = record.get("decision") or {}, record.get("task") or {}
    turns, calls = record.get("turns") or [], calls_of(record)
    errors = sum(bool(call.get("is_error")) for call in calls)
    size = f"{_count(len(turns), 'turn')}, {_count(len(calls), 'call')}"
    is_kept, reason = bool(decision.get("kept")), decision.get("reason", "")
    return rendered(
        "trajectory.html",
        is_open=is_open,
        is_wrong=reward is not None and not correct,
        is_kept=is_kept,
        lead=f"step {record.get('step')}" if lead is None else lead,
        anchor=anchor,
        address=address,
        max_text=max_text,
        verdict=verdict,
        style=style,
        fate="kept" if is_kept else str(reason).replace("_", " ") if reason != EVALUATED else "",
        question=clipped(str(task.get("question", "")), 300),
        size=size + (f" ({_count(errors, 'error')})" if errors else ""),
        why=why(record),
        facts=_facts(record) | dict(more or {}),
        turns=[
            {
                "number": turn.get("number", k),
                "pieces": list(pieces(turn)),
                "is_cut": turn.get("finish") == "length",
            }
            for k, turn in enumerate(turns, 1)
        ],
        segments=record.get("segments") or [],
        num_tokens=len(record.get("ids") or []),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def why(record: Record) -> str:
    """Why the learner saw the trajectory or not."""
    reason = str((record.get("decision") or {}).get("reason", ""))
    text = WHY.get(reason, f"Bucket: {reason}." if reason and reason != EVALUATED else "")
    failed = (record.get("outcome") or {}).get("failed")
    return f"{text} {failed.get('kind')}: {failed.get('detail')}" if failed else text


def _facts(record: Record) -> dict[str, object]:
    task, penalty, advantage = record.get("task") or {}, record.get("penalty"), record.get("advantage")
    facts: dict[str, object] = {
        "task": f"{task.get('id')} ({task.get('source')})",
        "question": clipped(str(task.get("question", ""))),
        "expected answer": task.get("answer"),
        "finished": str(record.get("finish_reason", "")).replace("_", " "),
    }
    if penalty:
        facts["penalty"] = f"tool errors {penalty['error']:.2f} + answer format {penalty['format']:.2f}"
    if advantage is not None:
        values = advantage if isinstance(advantage, list) else [advantage]
        low, high = min(values, default=0.0), max(values, default=0.0)
        facts["advantage"] = f"{low:+.2f}" if low == high else f"{low:+.2f} to {high:+.2f}, by token"
    if (record.get("decision") or {}).get("reason") != EVALUATED:
        facts["written by"] = f"policy version {record.get('policy_version')}, stage {record.get('stage')}"
    return facts


def pieces(turn: Mapping[str, Any]) -> Iterator[str | Mapping[str, Any]]:
    """The policy's text of a turn with its tool calls in their places: `name`, `arguments` (pairs of name or
    None, and text), `is_error`, `status` and `result`."""
    text, calls, end = str(turn.get("text", "")), list(turn.get("calls") or []), 0
    spans = tool_call_spans(text, TurnForm(**turn.get("form", {})))
    for span, call in zip_longest(spans, calls):
        raw = ""
        if span is not None:
            yield text[end : span[0]]
            raw, end = text[slice(*span)], span[1]
        yield raw if call is None else _shown(call, raw)
    yield text[end:]


def _shown(call: Mapping[str, Any], raw: str) -> Mapping[str, Any]:
    """The program and the other arguments (or what could not be decoded), the status and the result."""
    arguments, malformed = call.get("arguments"), call.get("malformed")
    readable = arguments if isinstance(arguments, Mapping) and not malformed else None
    return {
        "name": "undecodable call" if readable is None else str(call.get("name")),
        "arguments": [(None, raw)] if readable is None else _arguments(readable),
        "is_error": bool(call.get("is_error")),
        "status": str(call.get("status", "")) + (f": {malformed}" if malformed else ""),
        "result": str(call.get("result", "")).rstrip(),
    }


def _arguments(arguments: Mapping[str, Any]) -> list[tuple[str | None, str]]:
    """The program first, without its name, then every other argument under its name."""
    alone = CODE if CODE in arguments else next(iter(arguments)) if len(arguments) == 1 else None
    first = [] if alone is None else [(None, _plain(arguments[alone]))]
    return first + [(name, _plain(value)) for name, value in arguments.items() if name != alone]


def _plain(value: object) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
