"""The times of trajectories, as lanes of one drawing.

    a trajectory: a lane for its turns and one for its calls     a step: a lane for each of the last to end

Time outside the policy, the tools and the judge is waiting: for a slot in the engine before the first grant,
else for the next component. A drawing has at most as many parts as can be distinguished. Of a step only the
frames of the trajectories that ended last are read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocstar.engine.charts.drawing import NARROW, Figure, drawing, escape, nice_ticks
from rocstar.engine.record.json_record import RecordError, decode_times
from rocstar.engine.types import TrajectoryTimes
from rocstar.train.reading.view.listing import Listing
from rocstar.train.record.run_directory import records_file

COLORS: Final = {"queued": 7, "policy": 0, "tool": 2, "judge": 4}
WORDS: Final = {"queued": "waiting for the engine", "policy": "policy", "tool": "tools", "judge": "judge"}
LANE, TOP, FOOT = 16, 46, 24
MOST_LANES: Final = 64
"""Trajectories of a step's drawing."""

MOST_CALL_LANES: Final = 4
CHAR: Final = 7
"""User units of a character of a lane's name."""

APART: Final = 1.0
"""Pixels below which two parts of one kind are drawn as one."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span on a lane, in seconds."""

    lane: int
    kind: str
    start_s: float
    end_s: float


def trajectory_timeline(record: Mapping[str, Any]) -> Figure | None:
    """A trajectory's own lanes: the policy, its tools side by side, the judge; None without times."""
    times = decode_times(record.get("times"))
    if times is None:
        return None
    width = min(MOST_CALL_LANES, max((len(turn.calls) for turn in times.turns), default=0))
    tools = ["tools"] if width == 1 else [f"tool {k}" for k in range(1, width + 1)]
    lanes = {"queued": 0, "policy": 0, "tool": 1, "judge": 1 + width}
    bars = [
        Bar(lanes[kind] + min(number, MOST_CALL_LANES - 1), kind, start_s, end_s)
        for kind, number, start_s, end_s in _spans(times)
    ]
    names = ["policy", *tools, *(["judge"] if times.judged is not None else [])]
    draw = partial(drawn_lanes, "Turns and calls", names, bars, times.ended_s)
    caption = "Seconds since the start of the trajectory. Time without a bar on any lane is waiting."
    return Figure(draw, caption, is_wide=True)


def step_timeline(shown: Sequence[tuple[str, TrajectoryTimes]], *, of: int) -> Figure | None:
    """A lane for each of these trajectories by name, on one clock; `of`: so many the step has."""
    if not shown:
        return None
    first = min(times.began for _, times in shown)
    bars: list[Bar] = []
    for lane, (_, times) in enumerate(shown):
        shift_s = times.began - first
        bars += [Bar(lane, kind, shift_s + a, shift_s + b) for kind, _, a, b in _spans(times)]
    end_s = max(times.began - first + times.ended_s for _, times in shown)
    draw = partial(drawn_lanes, "Timeline", [name for name, _ in shown], bars, end_s)
    caption = (
        f"The {len(shown)} of {of} trajectories that ended last, in seconds since their first start. "
        "Blank: between the policy, tools and the judge. Each node has its own clock."
    )
    return Figure(draw, caption, is_wide=True)


def _spans(times: TrajectoryTimes) -> Iterator[tuple[str, int, float, float]]:
    """Yield the kind of each span, the number of a call in its turn (else 0), and start and end in seconds.

    The wait for the first slot of the engine is apart from the first request.
    """
    for k, turn in enumerate(times.turns):
        start_s, end_s = turn.written.start_s, turn.written.end_s
        if k == 0 and times.granted_s is not None and start_s < times.granted_s <= end_s:
            yield "queued", 0, start_s, times.granted_s
            start_s = times.granted_s
        yield "policy", 0, start_s, end_s
        for number, call in enumerate(turn.calls):
            if call is not None:
                yield "tool", number, call.start_s, call.end_s
    if times.judged is not None:
        yield "judge", 0, times.judged.start_s, times.judged.end_s


def _shortened(name: str, chars: int) -> str:
    """Return a name of at most `chars` characters that keeps the sibling's number."""
    if len(name) <= chars:
        return name
    head, mark, sibling = name.rpartition(" #")
    end = f"… #{sibling}" if mark else "…"
    return (head or name)[: max(1, chars - len(end))] + end


def drawn_lanes(
    title: str, names: Sequence[str], bars: Sequence[Bar], end_s: float, *, width: int, height: int
) -> str:
    """Return the lanes as one <svg>; `height` is that of curves."""
    is_narrow = width <= NARROW
    left, right = (64, 8) if is_narrow else (150, 14)
    end_s = end_s or 1.0
    scale = (width - left - right) / end_s
    bottom = TOP + LANE * len(names)
    body = [f'<text class="title" x="8" y="18">{escape(title)}</text>', _legend(bars, width)]
    for tick in nice_ticks(0.0, end_s, 4 if is_narrow else 8):
        if tick <= end_s:
            x = left + tick * scale
            body.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{bottom}"/>'
                f'<text class="tick" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick:g} s</text>'
            )
    chars = (left - 10) // CHAR
    for lane, name in enumerate(names):
        shown = _shortened(name, chars)
        body.append(
            f'<text class="tick" x="{left - 6}" y="{TOP + LANE * lane + 11}" text-anchor="end">{escape(shown)}</text>'
        )
    for bar in _joined(bars, scale):
        x, long = left + bar.start_s * scale, max(APART, (bar.end_s - bar.start_s) * scale)
        body.append(
            f'<rect x="{x:.1f}" y="{TOP + LANE * bar.lane + 2}" width="{long:.1f}" height="{LANE - 4}" '
            f'fill="var(--c{COLORS[bar.kind]})"/>'
        )
    return drawing(title, width, bottom + FOOT, "".join(body))


def _legend(bars: Sequence[Bar], width: int) -> str:
    """A square and a word for each kind that there is."""
    there, parts, x = {bar.kind for bar in bars}, [], 8.0 if width <= NARROW else 150.0
    for kind in (kind for kind in COLORS if kind in there):
        parts.append(
            f'<rect x="{x:.0f}" y="27" width="9" height="9" rx="2" fill="var(--c{COLORS[kind]})"/>'
            f'<text class="tick" x="{x + 13:.0f}" y="35.5">{WORDS[kind]}</text>'
        )
        x += 25 + 6.1 * len(WORDS[kind])
    return "".join(parts)


def _joined(bars: Sequence[Bar], scale: float) -> Iterator[Bar]:
    """Merge bars of a lane that are too close to be distinguished."""
    last: Bar | None = None
    for bar in sorted(bars, key=lambda one: (one.lane, one.kind, one.start_s)):
        if (
            last is not None
            and (last.lane, last.kind) == (bar.lane, bar.kind)
            and (bar.start_s - last.end_s) * scale < APART
        ):
            last = Bar(bar.lane, bar.kind, last.start_s, max(last.end_s, bar.end_s))
            continue
        if last is not None:
            yield last
        last = bar
    if last is not None:
        yield last


def timeline_of_step(listing: Listing, step: int, *, reveal: bool = False) -> dict[str, Any]:
    """Return the trajectories of a step that ended last, ordered by their start, and the sums of the step.

    `drawing` is None if no times are known.

    RecordError: the step is not there.
    """
    files = [path.stem for path in listing.files]
    stem = records_file(listing.files[0].parent, step).stem if files else ""
    number = listing.number_of(stem)
    if number is None:
        raise RecordError(f"there are no records of a step {step}")
    records = listing.opened(number)
    rows = records.rows
    first = int(listing.rows["file"].searchsorted(number))
    chosen = _last_to_end(rows)
    times = {}
    for row in chosen:
        found = decode_times(json.loads(records.metadata(row)).get("times"))
        if found is not None:
            times[row] = found
    shown = list(times)
    began = min((times[row].began for row in shown), default=0.0)
    at = files.index(stem)
    shown_rows = [
        {
            **listing.row_with_texts(first + row, reveal=reveal),
            "began_s": times[row].began - began,
            "writing_s": float(rows["writing_s"][row]),
        }
        for row in shown
    ]
    names = [f"{row.get('question') or row['name']} #{row['sibling']}" for row in shown_rows]
    known = ~np.isnan(rows["began"])
    drawing = step_timeline([(name, times[row]) for name, row in zip(names, shown, strict=True)], of=int(known.sum()))
    return {
        "step": step,
        "before": _step_of(files[at - 1]) if at else None,
        "after": _step_of(files[at + 1]) if at + 1 < len(files) else None,
        "drawing": None if drawing is None else drawing.as_json(),
        "rows": shown_rows,
        "sums": _sums(rows[known]),
    }


def _last_to_end(rows: npt.NDArray[Any]) -> list[int]:
    """The rows that ended last, in the order in which they began."""
    known = np.flatnonzero(~np.isnan(rows["began"]))
    ends = rows["began"][known] + rows["seconds"][known]
    last = known[np.argsort(-ends, kind="stable")[:MOST_LANES]]
    ordered: list[int] = last[np.argsort(rows["began"][last], kind="stable")].tolist()
    return ordered


def _sums(rows: npt.NDArray[Any]) -> dict[str, Any] | None:
    """Return the summed seconds of all trajectories and the duration of the step, or None without rows."""
    if not len(rows):
        return None
    seconds, writing_s, tools_s = (math.fsum(rows[name].tolist()) for name in ("seconds", "writing_s", "tools_s"))
    whole = float((rows["began"] + rows["seconds"]).max() - rows["began"].min())
    return {
        "trajectories": len(rows),
        "whole_s": whole,
        "seconds": seconds,
        "policy": writing_s,
        "tools": tools_s,
        "rest": max(0.0, seconds - writing_s - tools_s),
    }


def _step_of(stem: str) -> int | None:
    number = stem.removeprefix("step_")
    return int(number) if number.isdecimal() else None
