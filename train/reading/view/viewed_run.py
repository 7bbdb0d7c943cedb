"""The runs of the page, and the folder of each: of a run, an evaluation or a rollout, which may still grow.

    metrics.jsonl ──> rows (read again when it grew)
    trajectories/ ──> the listing `steps`           evaluations/step_N/attempts/NAME.jsonl ──> one for each

Not thread-safe: data stays in memory until its file changes.
"""

import re
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from rocstar.engine.record.files import FRAMES, LINES, is_sealed, record_files
from rocstar.train.evaluation.evaluation_folder import ATTEMPTS, RESULTS, EvaluationFolder
from rocstar.train.reading.view.listing import Listing, stamp_of
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.manifest import ManifestError, read_manifest, read_status, without_secrets
from rocstar.train.record.metrics import MetricsFileError, Row, read_metrics
from rocstar.train.record.run_directory import (
    CONFIG,
    CONSOLE_LOG,
    MANIFEST,
    METRICS,
    TRAJECTORIES,
    complete_checkpoints,
    config_of,
    records_file,
)

STEPS: Final = "steps"
"""The collection of the learner's steps; an evaluation's is `STEP:SET`."""
MAX_RUNS: Final = 500
MAX_LOG: Final = 256 << 10
MAX_LOG_LINES: Final = 1000
"""The bytes and the lines of the console log that are read, from its end."""
MAX_LISTINGS: Final = 4
TICK_NS: Final = 100_000_000
EVALUATION: Final = "evaluations"
TOKENIZER: Final = "tokenizer.json"
T = TypeVar("T")


class ViewedRun:
    """The contents of one run folder or file of records."""

    def __init__(self, name: str, path: Path, *, only: Sequence[Path] | None = None) -> None:
        """`only`: the files of steps that it knows of; default: all that lie there."""
        self.name = name
        self.path = path
        self._only = None if only is None else list(only)
        self._read: dict[Path, tuple[tuple[int, int], Any]] = {}
        self.problem = ""
        """Why metrics.jsonl could not be read."""
        self._listings = lru_cache(MAX_LISTINGS)(lambda collection: Listing())
        self._growing: Path | None = None
        """The file of the step that was being rolled out when `growing` was last asked."""
        self._tokenizer_path: Path | None = None
        self._tokenizer: Any = None
        self._token_texts: dict[int, str] = {}

    def metrics(self) -> list[Row]:
        """Return the rows of metrics.jsonl; none if there is none."""
        self.problem = ""
        try:
            return self._cached(self.path / METRICS, read_metrics) or []
        except MetricsFileError as error:
            self.problem = str(error)
            return []

    def config(self, step: int | None = None) -> Mapping[str, Any]:
        """The recipe, or the one in force at a step; empty where there is none that can be read."""
        path = self.path / CONFIG if step is None else config_of(self.path, step)
        try:
            return self._cached(path, lambda path: tomllib.loads(path.read_text(encoding="utf-8"))) or {}
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            return {}

    def starts(self) -> list[dict[str, Any]]:
        """Return the starts of the run by manifest.json, oldest first. ManifestError: it is damaged."""
        return self._cached(self.path / MANIFEST, lambda path: read_manifest(path.parent)) or []

    def log(self) -> list[str]:
        """Return the last lines of the console log; of the command, secrets are left out."""
        path = self.path / CONSOLE_LOG
        if not path.is_file():
            return []
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_LOG))
            lines = file.read().decode(errors="replace").splitlines()[-MAX_LOG_LINES:]
        return [_without_secrets(line) for line in lines]

    def _cached(self, path: Path, read: Callable[[Path], T]) -> T | None:
        """Return `read(path)`, which is called again after the file changed, or None without the file."""
        stamp = stamp_of(path)
        if stamp is None:
            return None
        if path not in self._read or self._read[path][0] != stamp:
            self._read.pop(path, None)
            self._read[path] = (stamp, read(path))
        return cast(T, self._read[path][1])

    def recipe_text(self) -> str:
        """Return config.toml, or "" if there is none."""
        try:
            return (self.path / CONFIG).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def status(self) -> str:
        """Return how the last start ended, or "" if manifest.json is missing or damaged."""
        try:
            return read_status(self.path, self.starts())
        except ManifestError:
            return ""

    def listing(self, collection: str) -> Listing | None:
        """Return the trajectories of a collection written so far, or None for an unknown one."""
        files = self._files(collection)
        if files is None:
            return None
        listing, folder = self._listings(collection), self.path / TRAJECTORIES
        changed = folder.stat().st_mtime_ns if collection == STEPS and folder.is_dir() else None
        if changed is not None and time.time_ns() - changed <= TICK_NS:
            changed = None  # within a tick of the clock a further change is not visible
        if changed is None or changed != listing.folder_changed:
            listing.refresh(files())
        listing.folder_changed = changed
        return listing

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
        return found + [f"{step}:{name}" for step, folder in self.evaluations().items() for name in sets_of(folder)]

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

    def texts(self, ids: Sequence[int]) -> list[str] | None:
        """Return the text of each token by the tokenizer of the last checkpoint, loaded at the first use.

        None without a checkpoint or without the package tokenizers: a record has only ids.
        """
        if self._tokenizer is None and not self._load_tokenizer():
            return None
        for token in ids:
            if token not in self._token_texts:
                self._token_texts[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return [self._token_texts[token] for token in ids]

    def _load_tokenizer(self) -> bool:
        folder = self.path if self.path.is_dir() else self.path.parent
        found = [path / TOKENIZER for path in complete_checkpoints(folder)]
        path = next((path for path in reversed(found) if path.is_file()), None)
        if path is None or path == self._tokenizer_path:
            return False
        self._tokenizer_path = path
        try:
            from tokenizers import Tokenizer
        except ImportError:
            return False
        self._tokenizer = Tokenizer.from_file(str(path))
        return True

    def stamp(self) -> str:
        """Return a stamp that changes with new data; it reads the dates of a few files only."""
        parts = [_dated(self.path / name) for name in (METRICS, TRAJECTORIES, CONSOLE_LOG, MANIFEST, "")]
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
    return "" if (stamp := stamp_of(path)) is None else "{:x}.{:x}".format(*stamp)


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
                raise ConfigError(f"{str(path)!r} does not exist; give a run directory, or a folder that has some")
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
                first = name = path.stem if path.is_file() else path.name
                number = 2
                while name in taken:
                    number, name = number + 1, f"{first} {number}"
                taken.add(name)
                self._by_path[path] = ViewedRun(name, path)
        return {self._by_path[path].name: self._by_path[path] for path in dict.fromkeys(found)}


def _viewable(path: Path) -> Iterator[Path]:
    """Yield the path if it can be viewed, else the folders in it that can be."""
    if is_viewable(path):
        yield path
    elif path.is_dir():
        yield from sorted(inner for inner in path.iterdir() if inner.is_dir() and is_viewable(inner))


def _without_secrets(line: str) -> str:
    """Return a line of the console log without the secrets of a command."""
    return " ".join(without_secrets(line.split(" "))) if "Z started: " in line else line
