"""How a trajectory looks on the report. All its text is untrusted and escaped."""

import json
import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from rocstar.train.report_sample import Record, calls_of, reward_of
from rocstar.train.report_svg import escape

WHY = {
    "kept": "Kept: the learner saw it.",
    "dropped_positive": "Dropped by RoC: correct, but not drawn among the correct siblings.",
    "dropped_negative": "Dropped: wrong, and not drawn among the wrong siblings.",
    "no_signal": "Not used: all scored siblings of the group have the same reward, so no advantage exists.",
    "failed": "Not used: lost to a failure of the system, so it has no reward.",
    "evaluated": "An attempt of an evaluation: no learner saw it.",
}
TOOL_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|(?=<tool_call>)|\Z)", re.S)
CODE = "code"
"""The argument that is a program, whatever the tool."""

MAX_TEXT = 20_000
"""Characters of one text that the page shows."""


def trajectory_html(record: Record, *, is_open: bool = False) -> str:
    """One trajectory as a folding card."""
    reward = reward_of(record)
    verdict, style = (
        ("no reward", "quiet") if reward is None else ("correct", "good") if reward else ("wrong", "bad")
    )
    decision = record.get("decision") or {}
    calls = calls_of(record)
    errors = sum(bool(call.get("is_error")) for call in calls)
    size = f"{_count(len(record.get('turns') or []), 'turn')}, {_count(len(calls), 'call')}"
    size += f" ({_count(errors, 'error')})" if errors else ""
    fate = "kept" if decision.get("kept") else str(decision.get("reason", "")).replace("_", " ")
    task = record.get("task") or {}
    head = (
        f'<span class="soft">step {escape(record.get("step"))}</span>'
        f'<span class="chip {style}">{verdict}</span>'
        f'<span class="chip {"good" if decision.get("kept") else "quiet"}">{escape(fate)}</span>'
        f'<span class="question-line">{escape(_clip(task.get("question", ""), 300))}</span>'
        f'<span class="soft">{escape(size)}</span>'
    )
    turns = "".join(_turn_html(turn, i) for i, turn in enumerate(record.get("turns") or [], start=1))
    return (
        f'<details class="trajectory {"wrong" if reward == 0 else ""}"{" open" if is_open else ""}>'
        f'<summary>{head}</summary><div class="body"><p>{escape(_why(record))}</p>{_facts(record)}{turns}'
        f"{_tokens_html(record)}</div></details>"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _why(record: Record) -> str:
    """Why the learner saw the trajectory or not."""
    reason = str((record.get("decision") or {}).get("reason", ""))
    text = WHY.get(reason, f"Bucket: {reason}." if reason else "")
    failed = (record.get("outcome") or {}).get("failed")
    return f"{text} {failed.get('kind')}: {failed.get('detail')}" if failed else text


def _facts(record: Record) -> str:
    task, penalty, advantage = record.get("task") or {}, record.get("penalty"), record.get("advantage")
    facts = {
        "task": f"{task.get('id')} ({task.get('source')})",
        "question": _clip(task.get("question", ""), MAX_TEXT),
        "expected answer": task.get("answer"),
        "finished": str(record.get("finish_reason", "")).replace("_", " "),
    }
    if penalty:
        facts["penalty"] = f"tool errors {penalty['error']:.2f} + answer format {penalty['format']:.2f}"
    if advantage is not None:
        facts["advantage"] = f"{advantage:+.2f}"
    facts["written by"] = f"policy version {record.get('policy_version')}, stage {record.get('stage')}"
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f'<dl class="facts">{rows}</dl>'


def _turn_html(turn: Mapping[str, Any], number: int) -> str:
    """The policy's text with its tool calls in their places."""
    text, calls = str(turn.get("text", "")), list(turn.get("calls") or [])
    parts, end = [f'<div class="who">turn {number}: the policy</div>'], 0
    for match, call in zip_longest(list(TOOL_CALL.finditer(text)), calls):
        if match is not None:
            parts.append(_policy_text(text[end : match.start()]))
            end = match.end()
        raw = match.group() if match is not None else ""
        parts.append(_call_html(call, raw) if call is not None else _policy_text(raw))
    parts.append(_policy_text(text[end:]))
    if turn.get("finish") == "length":
        parts.append('<div class="who">cut here by the token limit</div>')
    return f'<div class="turn">{"".join(parts)}</div>'


def _policy_text(text: str) -> str:
    if not text.strip():
        return ""
    safe = escape(_clip(text.strip("\n"), MAX_TEXT))
    # The tags are looked for after escaping, so that only this function can make markup.
    safe = re.sub(
        r"&lt;answer&gt;.*?&lt;/answer&gt;", lambda found: f"<mark>{found.group()}</mark>", safe, flags=re.S
    )
    return f"<pre>{safe}</pre>"


def _call_html(call: Mapping[str, Any], raw: str) -> str:
    """The program and the other arguments (or what could not be decoded), the status and the result."""
    arguments, malformed = call.get("arguments"), call.get("malformed")
    if malformed or not isinstance(arguments, Mapping):
        name, shown = "undecodable call", _pre(raw)
    else:
        name, shown = str(call.get("name")), _arguments_html(arguments)
    is_error, status = bool(call.get("is_error")), str(call.get("status", ""))
    detail = f": {malformed}" if malformed else ""
    return (
        f'<div class="call{" error" if is_error else ""}"><div class="who">calls {escape(name)}</div>{shown}'
        f'<div class="result"><span class="chip {"bad" if is_error else "good"}">'
        f"{escape(status)}{escape(detail)}</span>{_pre(str(call.get('result', '')).rstrip())}</div></div>"
    )


def _arguments_html(arguments: Mapping[str, Any]) -> str:
    """The program first, then every other argument under its name."""
    if CODE not in arguments and len(arguments) == 1:
        return _pre(_plain(next(iter(arguments.values()))))
    first = [_pre(_plain(arguments[CODE]))] if CODE in arguments else []
    others = [
        f'<div class="who">{escape(name)}{"" if value != "" else ": empty"}</div>'
        + (_pre(_plain(value)) if value != "" else "")
        for name, value in arguments.items()
        if name != CODE
    ]
    return "".join([*first, *others])


def _plain(value: object) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)


def _pre(text: str) -> str:
    return f"<pre>{escape(_clip(text, MAX_TEXT))}</pre>"


def _tokens_html(record: Record) -> str:
    """Every segment as the policy saw it, folded."""
    segments = record.get("segments") or []
    lines = "".join(
        f'<div class="who soft">{escape(s.get("origin"))}, tokens {escape(s.get("start"))} to '
        f"{escape(s.get('end'))}</div><pre>{escape(_clip(str(s.get('text', '')), MAX_TEXT))}</pre>"
        for s in segments
    )
    count = len(record.get("ids") or [])
    return (
        f'<details class="fold"><summary>all {count} tokens as text</summary>{lines}</details>'
        if lines
        else ""
    )


def _clip(text: object, limit: int) -> str:
    whole = str(text)
    return whole if len(whole) <= limit else f"{whole[:limit]} [{len(whole) - limit} more characters]"
