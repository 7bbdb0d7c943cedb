"""A pair of programs that tries to pass a number from one to the other, as a file of pairs/ has it.

A file, which ends in .txt where it is of two languages, has a header of `# field: value` lines, the sender, a
line `# %% receiver` and the receiver:

    when      live: both at a time; after: the receiver when the sender has ended
    tries     what carries the number           through   system calls of the filter that it takes
    bits      of a number (16)                  baseline  yes: how the receiver's number changed counts
    sender    of another pair                   needs     facts of the machine
    open      where it is known to pass: docs/reference/threats.md names it with its bits per second
    closed-with  layers with which it must not
    flavours  of the sender and the receiver (stdlib stdlib); a receiver that is no Python has no helpers
    without   layers that the machine must lack for it to pass; what is closed is tried with all of them
    cold      yes: both know COLD, a file that is not in the cache
    slots     a stream: lengths in seconds of the time in which one symbol of `bits` is sent

What the two know besides: number.py, and stream.py for a stream.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rocstar.sandbox.child import bash, cpp
from rocstar.sandbox.child.bash import BASH
from rocstar.sandbox.child.cpp import CPP

FOLDER = Path(__file__).parent / "pairs"
STDLIB = "stdlib"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    name: str
    tries: str
    when: str
    bits: int
    through: tuple[str, ...]
    needs: frozenset[str]
    baseline: bool
    open: str
    closed_with: frozenset[str]
    cold: bool
    without: tuple[str, ...]
    flavours: tuple[str, str]
    slots: tuple[float, ...]
    sender: str
    receiver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What came through. bits_per_s: of the receiver's reading alone, without the start of either program."""

    through: bool
    bits_per_s: float
    said: str


def load_pairs(folder: Path = FOLDER) -> dict[str, Pair]:
    """By name. Raises ValueError that names the file."""
    paths = sorted((*folder.glob("*.py"), *folder.glob("*.txt")))
    texts = {path.stem: path.read_text("utf-8") for path in paths}
    return {name: _parse(name, text, texts) for name, text in texts.items()}


def _parse(name: str, text: str, texts: dict[str, str]) -> Pair:
    fields = dict(re.findall(r"^# ([a-z-]+): (.*)$", text, re.M))
    head, found, receiver = text.partition("# %% receiver\n")
    if not found or "tries" not in fields or "through" not in fields:
        raise ValueError(f"{name}: a pair has `tries`, `through` and a line `# %% receiver`")
    if origin := fields.get("sender"):
        head = texts[origin].partition("# %% receiver\n")[0]
        fields = {**dict(re.findall(r"^# ([a-z-]+): (.*)$", head, re.M)), **fields}
    return Pair(
        name=name,
        tries=fields["tries"],
        when=fields["when"],
        bits=int(fields.get("bits", 16)),
        through=tuple(fields["through"].split()),
        needs=frozenset(fields.get("needs", "").split()),
        baseline=fields.get("baseline") == "yes",
        open=fields.get("open", ""),
        closed_with=frozenset(fields.get("closed-with", "").split()),
        without=tuple(fields.get("without", "").split()),
        cold=fields.get("cold") == "yes",
        flavours=_two(fields.get("flavours", f"{STDLIB} {STDLIB}")),
        slots=tuple(map(float, fields.get("slots", "").split())),
        sender=head,
        receiver=receiver,
    )


def _two(words: str) -> tuple[str, str]:
    sender, receiver = words.split()
    return sender, receiver


def is_offered(pair: Pair) -> bool:
    """Whether this machine has the flavours of both programs."""
    offered = {STDLIB: True, BASH: bash.offered(), CPP: cpp.offered()}
    return all(offered[flavour] for flavour in pair.flavours)


def flavours_of(pairs: Iterable[Pair]) -> tuple[str, ...]:
    return tuple(sorted({flavour for pair in pairs for flavour in pair.flavours}))
