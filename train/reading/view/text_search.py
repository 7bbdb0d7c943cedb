"""Search for a text in all records, one slice of time per request; the next request continues.

places in the list's order ──JSON of each, as bytes──> contains the text? ──read──> hits with context
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rocstar.engine.record.json_record import RecordError
from rocstar.train.reading.view.conversation import row_texts
from rocstar.train.reading.view.listing import Listing
from rocstar.train.reading.view.record_lines import decode_json
from rocstar.train.reading.view.trajectory_filter import Places
from rocstar.train.recipe.errors import ConfigError

SLICE_S: Final = 0.15
"""The duration of one slice."""
MAX_HITS: Final = 50
"""The maximum hits of one slice."""
CONTEXT: Final = 60
"""The characters of context on either side of a hit."""
MAX_TEXT: Final = 200


def search(
    listing: Listing,
    places: Places,
    text: str,
    *,
    start: int,
    reveal: bool,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Return the hits among these places from `start` on, until the slice is over; `next` is None at the end.

    ASCII letters match in any case. Every slice reads at least one record. Unreadable records are counted
        in `unread`. ConfigError for an empty text, or one that is too long.
    """
    if not text or len(text) > MAX_TEXT:
        raise ConfigError(f"a text to look for has 1 to {MAX_TEXT} characters, this one has {len(text)}")
    needle = json.dumps(text)[1:-1].encode("ascii").lower()
    until, at, unread = clock() + SLICE_S, start, 0
    hits: list[dict[str, Any]] = []
    while at < len(places) and len(hits) < MAX_HITS:
        try:
            found = _found(listing, int(places[at]), text, needle, reveal=reveal)
        except RecordError:
            found, unread = None, unread + 1
        if found is not None:
            hits.append({**listing.row_as_json(int(places[at])), **found})
        at += 1
        if clock() >= until:
            break
    done = at >= len(places)
    return {"hits": hits, "next": None if done else at, "looked": at, "of": len(places), "unread": unread}


def _found(listing: Listing, place: int, text: str, needle: bytes, *, reveal: bool) -> Mapping[str, str] | None:
    """Return the first hit in the record with its context, or None."""
    row = listing.rows[place]
    if row["hidden"] and not reveal:
        return None
    metadata = listing.opened(int(row["file"])).metadata(int(row["row"]))
    if needle not in metadata.lower():
        return None
    record = decode_json(metadata, dict[str, Any], f"row {row['row']}")
    wanted = text.lower()
    for where, found in _texts(record):
        at = found.lower().find(wanted)
        if at >= 0:
            before, behind = max(0, at - CONTEXT), at + len(text)
            return {
                **row_texts(record),
                "where": where,
                "before": found[before:at],
                "found": found[at:behind],
                "after": found[behind : behind + CONTEXT],
            }
    return None


def _texts(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the searchable texts of a record or of a frame's metadata."""
    task = record.get("task") or {}
    yield "question", str(task.get("question", ""))
    yield "expected answer", str(task.get("answer", ""))
    for number, turn in enumerate(record.get("turns") or (), 1):
        yield f"turn {number}", str(turn.get("text", ""))
        for call in turn.get("calls") or ():
            yield f"result of turn {number}", str(call.get("result", ""))
            for value in (call.get("arguments") or {}).values():
                yield f"call of turn {number}", value if isinstance(value, str) else json.dumps(value)
    segments = record.get("segments") or ()
    yield from (("tokens", text) for text in record.get("texts") or ())
    yield from (("tokens", str(s.get("text", ""))) for s in segments if isinstance(s, dict))
    yield "task", str(task.get("id", ""))
