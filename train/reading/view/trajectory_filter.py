"""The filter and the order of a listing.

    kept wrong errors>0 tokens>=4000 -truncated gcd

All words must match. A word is a state, a comparison of a number, or a part of the task's name; with `-`
before it, it must not match.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocstar.train.reading.view.listing import Listing
from rocstar.train.recipe.errors import ConfigError

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
        return np.asarray(listing.rows["task"] == _task(text))
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


def _task(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise ConfigError(f"task={text}: give the number that a link has, or task:NAME") from None


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
