"""The runs of the page: the given ones, and those in the given folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rocstar.train.reading.view.viewed_run import ViewedRun, is_viewable
from rocstar.train.recipe.errors import ConfigError

MAX_RUNS: Final = 500


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
