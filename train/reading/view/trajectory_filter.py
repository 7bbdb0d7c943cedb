"""The filter and the order of a listing, a search in its texts, and a sample of it.

    kept wrong errors>0 tokens>=4000 -truncated gcd

All words must match. A word is a state, a comparison of a number, or a part of the task's name; with `-`
before it, it must not match.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocstar.engine.record.json_record import RecordError
from rocstar.train.reading.view.conversation import row_texts
from rocstar.train.reading.view.listing import Listing, decode_json
from rocstar.train.recipe.errors import ConfigError

BUCKETS: Final = ("kept correct", "dropped_positive", "kept wrong", "dropped_negative", "no_signal", "failed")
"""The kinds of trajectory that a sample should contain, most informative first."""
OTHER: Final = "other"

Candidate = tuple[bytes, int, int, int]
"""The hash of a trajectory, by which candidates are ordered, its file, its row and its task."""
Step = dict[tuple[str, bool], list[Candidate]]
"""The candidates of a step by kind and whether a tool call failed."""


def sample_listing(listing: Listing, most: int) -> list[tuple[int, int]]:
    """Return the file number and row of at most `most` trajectories of the first and last step, of all kinds.

    Deterministic for equal files. Withheld trajectories are excluded.
    """
    if not len(listing.rows):
        return []
    first, last = int(listing.rows["step"].min()), int(listing.rows["step"].max())
    begin, end = _candidates(listing, first, most), _candidates(listing, last, most)
    if first == last:
        end = {}
    # About half from each step; all from one if the other has too few.
    early = choose(begin, most // 2 if end else most)
    late = choose(end, most - len(early))
    if len(early) + len(late) < most:
        early = choose(begin, most - len(late))
    return [(file, row) for _, file, row, _ in (*early, *late)]


def _candidates(listing: Listing, step: int, most: int) -> Step:
    found: Step = {}
    for at in np.flatnonzero((listing.rows["step"] == step) & ~listing.rows["hidden"]).tolist():
        row = listing.rows[at]
        kind = listing.buckets[row["bucket"]]
        if kind == "kept":
            kind = "kept correct" if row["is_correct"] else "kept wrong"
        name = f"{row['step']}/{row['task']}/{row['sibling']}/{row['row']}"
        key = hashlib.blake2b(name.encode(), digest_size=8).digest()
        candidate = (key, int(row["file"]), int(row["row"]), int(row["task"]))
        found.setdefault((kind if kind in BUCKETS else OTHER, bool(row["errors"])), []).append(candidate)
    return {kind: sorted(candidates)[:most] for kind, candidates in found.items()}


def choose(step: Step, num: int) -> list[Candidate]:
    """Return at most `num` candidates, one of each kind in turn; within a kind those with a tool error
    alternate with those without, and a task that was not chosen before comes first."""
    queues = []
    for kind in (*BUCKETS, OTHER):
        pairs = zip_longest(step.get((kind, True), []), step.get((kind, False), []))
        queues.append([one for one in chain.from_iterable(pairs) if one is not None])
    chosen: list[Candidate] = []
    tasks: set[int] = set()
    while len(chosen) < num and any(queues):
        for queue in filter(None, queues):
            if len(chosen) < num:
                one = next((one for one in queue if one[3] not in tasks), queue[0])
                queue.remove(one)
                chosen.append(one)
                tasks.add(one[3])
    return chosen


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


Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.uint32]

NUMBERS: Final = (
    *("step", "sibling", "version", "tokens", "policy_tokens", "turns", "calls", "errors", "answers"),
    *("reward", "penalty", "penalty_error", "penalty_format", "advantage", "seconds", "tools_s"),
)

STATES: Final[Mapping[str, Callable[[Any], Mask]]] = {
    "correct": lambda rows: rows["is_correct"] & ~np.isnan(rows["reward"]),
    "wrong": lambda rows: ~rows["is_correct"] & ~np.isnan(rows["reward"]),
    "failed": lambda rows: np.isnan(rows["reward"]),
    "truncated": lambda rows: rows["is_truncated"],
    "kept": lambda rows: rows["kept"],
}

_COMPARED: Final = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}

_COMPARISON: Final = re.compile(r"([a-z_]+)(>=|<=|!=|>|<|=)(\S*)")
MAX_CHARACTERS: Final = 500


def filter_trajectories(listing: Listing, words: str, sort: str) -> Places:
    """Return the places of the rows that match all words, sorted by a column, descending with `-`.

    Equal values keep the order of the files; rows without the value come last. ConfigError for an
    invalid word or an unknown column; the message lists the valid ones.
    """
    if len(words) > MAX_CHARACTERS:
        raise ConfigError(f"a filter has at most {MAX_CHARACTERS} characters, this one has {len(words)}")
    mask = np.ones(len(listing.rows), bool)
    for word in words.split():
        is_not = word.startswith("-") and len(word) > 1
        found = _matches(listing, word[1:] if is_not else word)
        mask &= ~found if is_not else found
    places: Places = np.flatnonzero(mask).astype(np.uint32)
    column = sort.removeprefix("-")
    if not column:
        return places
    keys = _sorted_by(listing, column)
    if len(places) < len(keys):
        keys = keys[places]
    if sort.startswith("-"):
        np.negative(keys, out=keys)
    return places[np.argsort(keys, kind="stable")]


def _matches(listing: Listing, word: str) -> Mask:
    if word in STATES:
        return STATES[word](listing.rows)
    if word in listing.buckets:
        return np.asarray(listing.rows["bucket"] == listing.buckets.index(word))
    if found := _COMPARISON.fullmatch(word):
        return _compared(listing, *found.groups())
    wanted = word.removeprefix("task:").casefold()
    numbers = [number for number, name in listing.names.items() if wanted in name.casefold()]
    return np.isin(listing.rows["task"], np.array(numbers, "<u8"))


def _compared(listing: Listing, column: str, sign: str, text: str) -> Mask:
    if column == "task" and sign == "=":
        try:
            return np.asarray(listing.rows["task"] == int(text, 16))
        except ValueError:
            raise ConfigError(f"task={text}: give the number that a link has, or task:NAME") from None
    if column == "family" and sign in ("=", "!="):
        wanted = [number for number, name in enumerate(listing.families) if name == text]
        held = np.isin(listing.rows["family"], np.array(wanted, "u1"))
        return held if sign == "=" else ~held
    if column not in NUMBERS:
        raise ConfigError(f"{column!r} is no number of a trajectory; there are {', '.join(NUMBERS)}")
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{column}{sign}{text}: {text!r} is no number") from None
    return np.asarray(_COMPARED[sign](_numbers(listing, column), value))


def _numbers(listing: Listing, column: str) -> npt.NDArray[Any]:
    rows = listing.rows
    if column == "penalty":
        return np.asarray(rows["penalty_error"] + rows["penalty_format"])
    return np.asarray(rows[column])


def _sorted_by(listing: Listing, column: str) -> npt.NDArray[Any]:
    """Return numbers in the order of the column."""
    if column == "name":
        return np.asarray(listing.rows["task"].astype(float))  # equal tasks are adjacent
    if column == "bucket":
        order = sorted(listing.buckets)
        codes = np.array([order.index(name) for name in listing.buckets] or [0], float)
        return np.asarray(codes[listing.rows["bucket"]])
    if column == "verdict":
        return np.where(np.isnan(listing.rows["reward"]), np.nan, listing.rows["is_correct"].astype(float))
    if column not in NUMBERS:
        raise ConfigError(f"no column {column!r} to sort by; there are name, bucket, {', '.join(NUMBERS)}")
    return _numbers(listing, column).astype(float)
