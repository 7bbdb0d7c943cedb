"""The runs of the page, and the folder of each: of a run, an evaluation or a rollout, which may still grow.

    metrics.jsonl ──> rows (read again when it grew)
    trajectories/ ──> the listing `steps`           evaluations/step_N/attempts/NAME.jsonl ──> one for each

Not thread-safe: data stays in memory until its file changes.
"""

from __future__ import annotations

import contextlib
import re
import time
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rocstar.engine.record.files import FRAMES, LINES, is_sealed, record_files
from rocstar.train.evaluation.evaluation_folder import ATTEMPTS, RESULTS, EvaluationFolder
from rocstar.train.reading.view.listing import Listing
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.manifest import ManifestError, read_manifest
from rocstar.train.record.metrics import MetricsFileError, Row, read_metrics
from rocstar.train.record.run_directory import (
    CONFIG,
    METRICS,
    TRAJECTORIES,
    complete_checkpoints,
    config_of,
    is_held,
    records_file,
)

STEPS: Final = "steps"
"""The collection of the learner's steps; an evaluation's is `STEP:SET`."""
MAX_RUNS: Final = 500
MAX_LISTINGS: Final = 4
TICK_NS: Final = 100_000_000
EVALUATION: Final = "evaluations"
TOKENIZER: Final = "tokenizer.json"


class TokenTextsOfRun:
    """Loads the tokenizer of the run's last checkpoint at the first use.

    It is None without a checkpoint or without the package tokenizers: a record has only ids.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path: Path | None = None
        self._tokenizer: Any = None
        self._known: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str] | None:
        if self._tokenizer is None and not self._load():
            return None
        for token in ids:
            if token not in self._known:
                self._known[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return [self._known[token] for token in ids]

    def _load(self) -> bool:
        found = [path / TOKENIZER for path in complete_checkpoints(self._directory)]
        path = next((path for path in reversed(found) if path.is_file()), None)
        if path is None or path == self._path:
            return False
        self._path = path
        try:
            from tokenizers import Tokenizer
        except ImportError:
            return False
        self._tokenizer = Tokenizer.from_file(str(path))
        return True


class ViewedRun:
    """The contents of one run folder or file of records."""

    def __init__(self, name: str, path: Path, *, only: Sequence[Path] | None = None) -> None:
        """`only`: the files of steps that it knows of; default: all that lie there."""
        self.name = name
        self.path = path
        self._only = None if only is None else list(only)
        self._metrics: tuple[tuple[int, int], list[Row]] | None = None
        self.problem = ""
        """Why metrics.jsonl could not be read."""
        self._listings: OrderedDict[str, tuple[Listing, int | None]] = OrderedDict()
        self._growing: Path | None = None
        """The file of the step that was being rolled out when `growing` was last asked."""
        self.texts = TokenTextsOfRun(path if path.is_dir() else path.parent)

    def metrics(self) -> list[Row]:
        """The rows of metrics.jsonl; none where there is none."""
        path = self.path / METRICS
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return []
        stamp = (found.st_mtime_ns, found.st_size)
        if self._metrics is None or self._metrics[0] != stamp:
            try:
                self._metrics, self.problem = (stamp, read_metrics(path)), ""
            except MetricsFileError as error:
                self._metrics, self.problem = (stamp, []), str(error)
        return self._metrics[1]

    def config(self, step: int | None = None) -> Mapping[str, Any]:
        """The recipe, or the one in force at a step; empty where there is none that can be read."""
        path = self.path / CONFIG if step is None else config_of(self.path, step)
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            return {}

    def recipe_text(self) -> str:
        """Return config.toml, or "" if there is none."""
        try:
            return (self.path / CONFIG).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def status(self) -> str:
        """Return how the last start ended, by manifest.json, or "" without one. A start without an end and
        without a running process was killed."""
        try:
            starts = read_manifest(self.path) if self.path.is_dir() else []
        except ManifestError:
            return ""
        told = str(starts[-1].get("status", "")) if starts else ""
        with contextlib.suppress(OSError):  # another user's lock says nothing about the run
            if told == "running" and not is_held(self.path):
                return "killed"
        return told

    def listing(self, collection: str) -> Listing | None:
        """Return the trajectories of a collection written so far, or None for an unknown one."""
        files = self._files(collection)
        if files is None:
            return None
        listing, dated = self._listings.pop(collection, (Listing(), None))
        now = self._folder_date(collection)
        if dated is None or dated != now:
            listing.refresh(files())
        self._listings[collection] = listing, now
        if len(self._listings) > MAX_LISTINGS:
            self._listings.popitem(last=False)
        return listing

    def _folder_date(self, collection: str) -> int | None:
        """Return when the folder of the steps last changed, or None if that was in the current tick of the
        clock, within which a further change is not visible."""
        if collection != STEPS or not (self.path / TRAJECTORIES).is_dir():
            return None
        date = (self.path / TRAJECTORIES).stat().st_mtime_ns
        return date if time.time_ns() - date > TICK_NS else None

    def _files(self, collection: str) -> Callable[[], list[Path]] | None:
        """Return the function that lists a collection's files, or None for an unknown name."""
        if collection == STEPS:
            return lambda: records_of(self.path) if self._only is None else self._only
        step, _, name = collection.partition(":")
        folder = self.evaluations().get(step)
        # Only a name of the folder: it may contain no path.
        if folder is None or name not in sets_of(folder):
            return None
        return lambda: [EvaluationFolder(folder).attempts(name)]

    def collections(self) -> list[str]:
        """The names of what `listing` has."""
        found = [STEPS] if records_of(self.path) else []
        return found + [
            f"{step}:{name}" for step, folder in self.evaluations().items() for name in sets_of(folder)
        ]

    def evaluations(self) -> dict[str, Path]:
        """The folders of finished evaluations by step; of a folder that is one itself by `0`."""
        if (self.path / RESULTS).is_file():
            return {"0": self.path}
        found = _numbered(self.path / EVALUATION, "")
        return {str(step): path for step, path in found.items() if (path / RESULTS).is_file()}

    def growing(self) -> dict[str, int] | None:
        """The step whose trajectories are being written, and so many bytes so far; None if there is none."""
        found, self._growing = _numbered(self.path / TRAJECTORIES, FRAMES), None
        step = max(found, default=0)
        if not found or is_sealed(records_file(self.path, step)):
            return None
        self._growing = found[step]
        return {"step": step, "bytes": self._growing.stat().st_size}

    def stamp(self) -> str:
        """Return a stamp that changes with new data; it reads the dates of a few files only."""
        parts = [_dated(self.path / METRICS), _dated(self.path / TRAJECTORIES), _dated(self.path)]
        parts += [_dated(self.path / EVALUATION)]
        # Only in the newest folders a result may still appear.
        newest = list(_numbered(self.path / EVALUATION, "").values())[-2:]
        parts += [_dated(folder / RESULTS) for folder in newest]
        if self._growing is not None and self._growing.is_file():  # by megabytes: not each group is news
            parts.append(str(self._growing.stat().st_size >> 20))
        return "-".join(parts)


def records_of(path: Path) -> list[Path]:
    """The files of finished steps of a run, a folder of records or one file, in order."""
    if path.is_file():
        return [path]
    inner = path / TRAJECTORIES
    return list(record_files(inner if inner.is_dir() else path).values())


def sets_of(folder: Path) -> list[str]:
    """The sets of an evaluation whose attempts are there."""
    return sorted(path.stem for path in (folder / ATTEMPTS).glob(f"*{LINES}"))


def is_viewable(path: Path) -> bool:
    """Return True if a folder or file can be viewed."""
    if path.is_file():
        return path.suffix == LINES
    if any((path / name).is_file() for name in (METRICS, RESULTS)) or (path / TRAJECTORIES).is_dir():
        return True
    return bool(record_files(path))


def _numbered(folder: Path, ending: str) -> dict[int, Path]:
    """Return the paths `step_N` with an ending in a folder, by N, in order; none without the folder."""
    named = re.compile(rf"step_([0-9]+){re.escape(ending)}")
    found = {int(m[1]): path for path in folder.glob("step_*") if (m := named.fullmatch(path.name))}
    return dict(sorted(found.items()))


def _dated(path: Path) -> str:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return f"{found.st_mtime_ns:x}.{found.st_size:x}"


class RunIndex:
    """Runs by name. A folder of runs is listed again each time, as new ones may appear.

    Invariant: a run keeps its name and object while its path exists; names are unique and are not paths.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """ConfigError for a path that has nothing to show."""
        self._paths = [path.absolute() for path in paths]
        self._by_path: dict[Path, ViewedRun] = {}
        for path in self._paths:
            if not path.exists():
                raise ConfigError(
                    f"{str(path)!r} does not exist; give a run directory, or a folder that has some"
                )
            if not any(_viewable(path)):
                raise ConfigError(
                    f"{str(path)!r} has nothing to show: no run, evaluation or records lie in it or in its "
                    "folders; give a directory that `rocstar train`, `eval` or `rollout` wrote"
                )

    def runs(self) -> dict[str, ViewedRun]:
        """Return all runs by name, in the order of the paths."""
        found = [path for given in self._paths for path in _viewable(given)][:MAX_RUNS]
        for path in self._by_path.keys() - set(found):
            del self._by_path[path]
        taken = {run.name for run in self._by_path.values()}
        for path in found:
            if path not in self._by_path:
                name = _free(path.stem if path.is_file() else path.name, taken)
                taken.add(name)
                self._by_path[path] = ViewedRun(name, path)
        return {self._by_path[path].name: self._by_path[path] for path in dict.fromkeys(found)}


def _viewable(path: Path) -> Iterator[Path]:
    if is_viewable(path):
        yield path
    elif path.is_dir():
        yield from sorted(inner for inner in path.iterdir() if inner.is_dir() and is_viewable(inner))


def _free(name: str, taken: set[str]) -> str:
    number, free = 2, name
    while free in taken:
        number, free = number + 1, f"{name} {number}"
    return free
