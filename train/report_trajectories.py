"""Ten trajectories to read: which ones, and how they look. All their text is untrusted and escaped."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from rocstar.train.report_svg import escape

Record = Mapping[str, Any]

BUCKETS = ("kept correct", "dropped_positive", "kept wrong", "dropped_negative", "no_signal", "failed")
"""The kinds of trajectory that a sample should hold, most telling first."""

WHY = {
    "kept": "Kept: the learner saw it.",
    "dropped_positive": "Dropped by RoC: correct, but not drawn among the correct siblings.",
    "dropped_negative": "Dropped: wrong, and not drawn among the wrong siblings.",
    "no_signal": "Not used: all scored siblings of the group have the same reward, so no advantage exists.",
    "failed": "Not used: lost to a failure of the system, so it has no reward.",
}
TOOL_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.S)
MAX_TEXT = 20_000
"""Characters of one text that the page shows."""


def sample(run_dir: Path, num: int = 10) -> tuple[list[Record], list[str]]:
    """About half of `num` trajectories from the first recorded step and half from the last, of all kinds.

    Also returns sentences about files that were not read.
    """
    notes: list[str] = []
    files = sorted((run_dir / "trajectories").glob("*.jsonl*"), key=_natural)
    files = [f for f in files if f.suffix in (".jsonl", ".zst") and not f.name.startswith("eval")]
    # The first and the last file hold the first and the last step, however many files a run has.
    ends = [files[0], files[-1]] if len(files) > 1 else files
    first, last = _end_steps(chain.from_iterable(_records(file, notes) for file in ends))
    early = choose(first, num // 2 if last else num)
    late = choose(last, num - len(early))
    if len(early) + len(late) < num:
        early = choose(first, num - len(late))
    return early + late, notes


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts step_9 before step_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path.name)]


def _records(path: Path, notes: list[str]) -> Iterator[Record]:
    """The JSON objects of a file; what cannot be read is told in `notes`."""
    for number, line in enumerate(_lines(path, notes), start=1):
        try:
            record = json.loads(line)
        except ValueError:
            notes.append(f"{path.name}, line {number}: not JSON, left out")
            continue
        if isinstance(record, dict) and record.get("v") == 1:
            yield record
        else:
            notes.append(f"{path.name}, line {number}: not a trajectory record of version 1, left out")


def _lines(path: Path, notes: list[str]) -> Iterator[str]:
    if path.suffix != ".zst":
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
        return
    try:
        import zstandard
    except ImportError:
        notes.append(f"{path.name} is compressed; to read it: pip install 'rocstar[zstd]'")
        return
    try:
        with zstandard.open(path, "rt", encoding="utf-8", errors="replace") as file:
            yield from file
    except zstandard.ZstdError as error:
        notes.append(f"{path.name}: {error}, the rest is left out")


def _end_steps(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """The records of the lowest and of the highest step (empty if that is the same one)."""
    by_step: dict[int, list[Record]] = {}
    for record in records:
        by_step.setdefault(int(record.get("step", 0)), []).append(record)
        for middle in set(by_step) - {min(by_step), max(by_step)}:
            del by_step[middle]
    steps = sorted(by_step)
    return (by_step[steps[0]] if steps else []), (by_step[steps[-1]] if len(steps) > 1 else [])


def choose(records: Sequence[Record], num: int) -> list[Record]:
    """At most `num` records, one of each kind in turn; within a kind those with a tool error alternate."""
    by_kind: dict[str, list[Record]] = {kind: [] for kind in BUCKETS}
    for record in records:
        by_kind.setdefault(kind_of(record), []).append(record)
    queues = []
    for members in by_kind.values():
        faulty = [r for r in members if any(c.get("is_error") for c in _calls(r))]
        clean = [r for r in members if r not in faulty]
        queues.append([r for pair in zip_longest(faulty, clean) for r in pair if r is not None])
    in_turn = (record for layer in zip_longest(*queues) for record in layer if record is not None)
    return [record for record, _ in zip(in_turn, range(num), strict=False)]


def kind_of(record: Record) -> str:
    """One of `BUCKETS`, or the bucket that the record names."""
    reason = str((record.get("decision") or {}).get("reason", ""))
    if reason == "kept":
        return "kept correct" if _reward(record) == 1.0 else "kept wrong"
    return reason


def _reward(record: Record) -> float | None:
    value = (record.get("outcome") or {}).get("reward")
    return float(value) if value is not None else None


def _calls(record: Record) -> list[Mapping[str, Any]]:
    return [call for turn in record.get("turns") or [] for call in turn.get("calls") or []]


def trajectory_html(record: Record, *, is_open: bool = False) -> str:
    """One trajectory as a folding card."""
    reward = _reward(record)
    verdict, style = (
        ("no reward", "quiet") if reward is None else ("correct", "good") if reward else ("wrong", "bad")
    )
    decision = record.get("decision") or {}
    calls = _calls(record)
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
    """The program (or what could not be decoded), the status and the result."""
    arguments, malformed = call.get("arguments"), call.get("malformed")
    if malformed or not isinstance(arguments, Mapping):
        program, name = raw, "undecodable call"
    else:
        name = str(call.get("name"))
        # Most tools take one program; more arguments are shown with their names.
        program = (
            str(next(iter(arguments.values())))
            if len(arguments) == 1
            else json.dumps(arguments, indent=1, ensure_ascii=False)
        )
    is_error, status = bool(call.get("is_error")), str(call.get("status", ""))
    result = str(call.get("result", ""))
    detail = f": {malformed}" if malformed else ""
    return (
        f'<div class="call{" error" if is_error else ""}"><div class="who">calls {escape(name)}</div>'
        f"<pre>{escape(_clip(program, MAX_TEXT))}</pre>"
        f'<div class="result"><span class="chip {"bad" if is_error else "good"}">'
        f"{escape(status)}{escape(detail)}</span>"
        f"<pre>{escape(_clip(result.rstrip(), MAX_TEXT))}</pre></div></div>"
    )


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
