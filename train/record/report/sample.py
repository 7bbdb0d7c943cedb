"""Which trajectories the report shows: a few of each kind, out of files of any size.

    first pass    every row of an index, or line of an export, is classified and forgotten; of each kind in
                  the first and in the last step a few places (file, row) stay: those whose ids have the
                  lowest hashes
    second pass   the chosen records are read

So memory does not grow with the run, time grows with the two files, and the same run shows the same ones.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from rocstar.engine.record.files import FRAMES, is_sealed
from rocstar.engine.record.reading import RecordError
from rocstar.engine.record.step_file import StepFile
from rocstar.engine.types import HIDDEN

Record = Mapping[str, Any]

BUCKETS = ("kept correct", "dropped_positive", "kept wrong", "dropped_negative", "no_signal", "failed")
"""The kinds of trajectory that a sample should contain, most informative first."""

OTHER = "other"
MAX_NOTES = 5


@dataclass(frozen=True, slots=True, order=True)
class RecordPlace:
    """The position of a trajectory and its selection key. Ordered by the hash of its id."""

    key: bytes
    file: int
    line: int
    task: str = field(compare=False)


RecordAt = tuple[Path, int]
"""A file of records, and the row of an index or the line, from 1 on, in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSample:
    """A sample of the trajectories of a run."""

    shown: list[tuple[RecordAt, Record]]
    notes: list[str]
    """Sentences about records that were not read."""

    @property
    def records(self) -> list[Record]:
        """The selected records, without their positions."""
        return [record for _, record in self.shown]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The facts of a record that decide its selection."""

    line: int
    step: int
    name: str
    task: str
    kind: str
    is_faulty: bool


Step = dict[tuple[str, bool], list[RecordPlace]]
"""The places of a step that may be chosen, lowest hash first, by kind and whether a tool call failed."""


@dataclass(slots=True)
class Notes:
    """Sentences about records that were not read: the first few, and their number."""

    texts: list[str] = field(default_factory=list)
    left_out: int = 0

    def add(self, text: str) -> None:
        if len(self.texts) < MAX_NOTES:
            self.texts.append(text)
        else:
            self.left_out += 1

    def all(self) -> list[str]:
        return [*self.texts, f"and {self.left_out} more"] if self.left_out else self.texts


def sample(run_dir: Path, num: int = 10) -> ReportSample:
    """About half of `num` trajectories from the first recorded step and half from the last, of all kinds.
    Records of hidden tasks are left out."""
    notes = Notes()
    folder = run_dir / "trajectories"
    lines = (f for f in folder.glob("*.jsonl*") if f.suffix in (".jsonl", ".zst"))
    named = {f.name.partition(".")[0]: f for f in (*lines, *filter(is_sealed, folder.glob(f"*{FRAMES}")))}
    files = sorted((f for f in named.values() if not f.name.startswith("eval")), key=_natural)
    # The first and the last file hold the first and the last step, however many files a run has.
    ends = [files[0], files[-1]] if len(files) > 1 else files
    first, last = end_steps(ends, num, notes)
    chosen = choose_of_both(first, last, num)
    shown = [(place, record) for place, record in _read(ends, chosen) if not is_hidden(record)]
    return ReportSample(shown=shown, notes=notes.all())


def choose_of_both(first: Step, last: Step, num: int) -> list[RecordPlace]:
    """About half of `num` places from each of two steps; all from one where the other has none."""
    early = choose(first, num // 2 if last else num)
    late = choose(last, num - len(early))
    if len(early) + len(late) < num:
        early = choose(first, num - len(late))
    return [*early, *late]


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts step_9 before step_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path.name)]


def end_steps(files: Sequence[Path], num: int, notes: Notes) -> tuple[Step, Step]:
    """Return at most `num` places of each kind in the lowest and in the highest step (empty if the same)."""
    steps: dict[int, Step] = {}
    for k, file in enumerate(files):
        for seen in _seen_in(file, notes):
            steps.setdefault(seen.step, {})
            for middle in steps.keys() - {min(steps), max(steps)}:
                del steps[middle]
            if seen.step in steps:
                _keep(steps[seen.step], seen, RecordPlace(_hash(seen.name), k, seen.line, seen.task), num)
    found = [steps[step] for step in sorted(steps)]
    return (found[0] if found else {}), (found[1] if len(found) > 1 else {})


def _keep(step: Step, seen: _Seen, place: RecordPlace, num: int) -> None:
    places = step.setdefault((seen.kind if seen.kind in BUCKETS else OTHER, seen.is_faulty), [])
    bisect.insort(places, place)
    del places[num:]


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode(errors="backslashreplace"), digest_size=8).digest()


def choose(step: Step, num: int) -> list[RecordPlace]:
    """Return at most `num` places, one of each kind in turn; within a kind those with a tool error alternate
    with those without, and a task that was not chosen before comes first."""
    queues = []
    for kind in (*BUCKETS, OTHER):
        pairs = zip_longest(step.get((kind, True), []), step.get((kind, False), []))
        queues.append([place for place in chain.from_iterable(pairs) if place is not None])
    chosen: list[RecordPlace] = []
    tasks: set[str] = set()
    while len(chosen) < num and any(queues):
        for queue in filter(None, queues):
            if len(chosen) < num:
                place = next((p for p in queue if p.task not in tasks), queue[0])
                queue.remove(place)
                chosen.append(place)
                tasks.add(place.task)
    return chosen


def _read(files: Sequence[Path], places: Sequence[RecordPlace]) -> list[tuple[RecordAt, Record]]:
    """The records at these places, in their order; one that is gone by now is left out."""
    found: dict[tuple[int, int], Record] = {}
    for k, file in enumerate(files):
        wanted = {place.line for place in places if place.file == k}
        if file.suffix == FRAMES:
            found |= _opened(file, k, wanted)
            continue
        for line, text in enumerate(_lines(file, Notes()), start=1):
            if line in wanted and (record := _parsed(text)) is not None:
                found[k, line] = record
    return [
        ((files[place.file], place.line), found[place.file, place.line])
        for place in places
        if (place.file, place.line) in found
    ]


def _opened(path: Path, file: int, rows: Iterable[int]) -> dict[tuple[int, int], Record]:
    try:
        step = StepFile(path)
        return {(file, row): step.record(row) for row in rows}
    except RecordError:
        return {}


def _seen_in(path: Path, notes: Notes) -> Iterator[_Seen]:
    """Yield the records of a file; unreadable ones are reported in `notes`."""
    if path.suffix == FRAMES:
        yield from _rows(path, notes)
        return
    for line, text in enumerate(_lines(path, notes), start=1):
        record = _parsed(text)
        if record is not None:
            yield _Seen(
                line=line,
                step=record.get("step", 0),
                name=str(record.get("id")),
                task=str((record.get("task") or {}).get("id")),
                kind=kind_of(record),
                is_faulty=any(call.get("is_error") for call in calls_of(record)),
            )
        else:
            notes.add(f"{path.name}, line {line}: not a trajectory record of version 1, left out")


def _rows(path: Path, notes: Notes) -> Iterator[_Seen]:
    try:
        step = StepFile(path)
    except RecordError as error:
        notes.add(f"{error}, left out")
        return
    for line, row in enumerate(step.rows):
        task = row["name"].decode("utf-8", "replace")
        bucket = step.buckets[row["bucket"]]
        yield _Seen(
            line=line,
            step=int(row["step"]),
            name=f"s{row['step']}/{task}/{row['sibling']}",
            task=task,
            kind=kind_of_fate(bucket, bool(row["is_correct"])),
            is_faulty=bool(row["tool_errors"]),
        )


def _parsed(text: str) -> Record | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_record = isinstance(record, dict) and record.get("v") == 1 and isinstance(record.get("step", 0), int)
    return record if is_record else None


def _lines(path: Path, notes: Notes) -> Iterator[str]:
    if path.suffix != ".zst":
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
        return
    try:
        import zstandard
    except ImportError:
        notes.add(f"{path.name} is compressed; to read it: pip install zstandard")
        return
    try:
        with zstandard.open(path, "rt", encoding="utf-8", errors="replace") as file:
            yield from file
    except zstandard.ZstdError as error:
        notes.add(f"{path.name}: {error}, the rest is left out")


def kind_of(record: Record) -> str:
    """One of `BUCKETS`, or the bucket that the record names."""
    return kind_of_fate(str((record.get("decision") or {}).get("reason", "")), is_correct(record))


def kind_of_fate(bucket: str, is_right: bool) -> str:
    """The kind of a trajectory with this verdict: one of `BUCKETS`, or the bucket."""
    if bucket == "kept":
        return "kept correct" if is_right else "kept wrong"
    return bucket


def reward_of(record: Record) -> float | None:
    """None where the trajectory has no reward."""
    value = (record.get("outcome") or {}).get("reward")
    return float(value) if value is not None else None


def is_correct(record: Record) -> bool:
    """Whether the trajectory was judged correct; of a record that does not say it, with a reward of 1."""
    outcome = record.get("outcome") or {}
    return bool(outcome.get("is_correct", outcome.get("reward") == 1.0))


def calls_of(record: Record) -> list[Mapping[str, Any]]:
    """The tool calls of all turns."""
    return [call for turn in record.get("turns") or [] for call in turn.get("calls") or []]


def is_hidden(record: Record) -> bool:
    """Return True if the record's task must not be shown (`engine.types.HIDDEN`)."""
    return bool(((record.get("task") or {}).get("meta") or {}).get(HIDDEN))
