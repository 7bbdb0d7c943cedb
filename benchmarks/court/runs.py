"""The runs of a question: a cold start per seed that its arms share, then an arm's reinforcement.

    DIR/cold/KEY/seed_S    KEY: digest of what a cold start depends on: tables of the recipe, and options
    DIR/NAME/ARM/seed_S    NAME: the question's file; curve.json is written last

A run with its curve is not run again; one that was cut off is resumed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rocstar.train.recipe.load import read_toml

from .budget import is_spent, read_spent
from .curves import Curve, read_curve
from .question import Question, as_toml

CURVE = "curve.json"
TABLES = ("model", "tool", "tools", "tasks", "sft")
"""What a cold start depends on."""
Train = Callable[[Sequence[str], Path], int]
"""Trains with the words of a command line, writes to a log, and returns the exit code."""


class Runs:
    """Makes the runs of one question in `folder`, at most `at_once` at a time."""

    def __init__(self, question: Question, file: Path, folder: Path, at_once: int, train: Train) -> None:
        self._question, self._folder = question, folder.resolve()
        self._arms = self._folder / file.stem
        self._recipe = (file.parent / question.recipe).resolve()
        self._train_once = train
        self._pool = ThreadPoolExecutor(at_once)
        self._cold: dict[Path, Future[Path]] = {}

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_: object) -> None:
        """Begin no other run, and wait for those that are under way."""
        self._pool.shutdown(cancel_futures=True)

    def start(self, arms: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, Future[Curve]]]:
        """Return the curves of these runs to come, by seed. All cold starts begin first: a run that waits for its own
        keeps a thread of the pool."""
        runs = [(arm, seed) for seed in seeds for arm in arms]
        colds = [None if self._is_finished(arm, seed) else self._cold_of(arm, seed) for arm, seed in runs]
        return [(arm, self._start(arm, seed, cold)) for (arm, seed), cold in zip(runs, colds, strict=True)]

    def _is_finished(self, arm: str, seed: int) -> bool:
        return (self._arms / arm / f"seed_{seed}" / CURVE).exists()

    def _cold_of(self, arm: str, seed: int) -> Future[Path]:
        cold, _ = self._question.options(arm)
        recipe = read_toml(self._recipe, what=f"recipe {str(self._recipe)!r}")
        known = json.dumps([[recipe.get(name) for name in TABLES], cold])
        start = self._folder / "cold" / hashlib.sha256(known.encode()).hexdigest()[:12] / f"seed_{seed}"
        if start not in self._cold:
            self._cold[start] = self._pool.submit(self._cold_start, start, [*cold, f"--run.seed={seed}"])
        return self._cold[start]

    def _start(self, arm: str, seed: int, cold: Future[Path] | None) -> Future[Curve]:
        folder = self._arms / arm / f"seed_{seed}"
        if cold is None:
            return self._pool.submit(read_finished, folder)
        _, options = self._question.options(arm)
        return self._pool.submit(self._run, folder, cold, [*options, f"--run.seed={seed}"])

    def _cold_start(self, folder: Path, options: list[str]) -> Path:
        with taken(folder):
            self._train(folder, [*options, "--stages=[]", "--eval=[]"])
        return folder / "checkpoints" / "step_0"

    def _run(self, folder: Path, cold: Future[Path], options: list[str]) -> Curve:
        """Wait for the cold start, which a thread of the pool has begun, and make the run."""
        budget = as_toml([{"kind": "budget:Budget", "args": self._question.budget.limits}])
        start = [f"--model.path={cold.result()}", "--sft.steps=0", f"--run.callbacks={budget}"]
        with taken(folder):
            if not is_finished(folder) and is_spent(read_spent(folder), self._question.budget.limits):
                shutil.rmtree(folder)  # killed in its last evaluation: resumed, it would make a further step
            self._train(folder, [*start, *options])
            if not (folder / CURVE).exists():
                part = folder / f"{CURVE}.part"
                part.write_text(json.dumps(read_curve(folder)))
                part.replace(folder / CURVE)
                shutil.rmtree(folder / "trajectories", ignore_errors=True)  # an arm without steps has none
        return read_finished(folder)

    def _train(self, folder: Path, options: list[str]) -> None:
        """Train, unless that is done, or go on with what a kill left."""
        if is_finished(folder):
            return
        resume = ["--resume"] * (folder / "manifest.json").exists()
        log = Path(f"{folder}.log")
        if code := self._train_once([str(self._recipe), "--output-dir", str(folder), *options, *resume], log):
            raise SystemExit(f"court: a run ended with exit code {code}; see {log}")


@contextmanager
def taken(folder: Path) -> Iterator[None]:
    """Wait until no other court has the folder of a run, and keep others out."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_finished(run: Path) -> Curve:
    curve: Curve = json.loads((run / CURVE).read_text())
    return curve


def commits(question: Path, unknown: str) -> list[str]:
    """Return the commits of the code that made the runs in the folder of a question, `-dirty` if files differed.
    unknown: of runs in a tree without git."""
    manifests = [json.loads(file.read_text()) for file in question.glob("*/seed_*/manifest.json")]
    starts = [start for manifest in manifests for start in manifest["starts"]]
    return sorted({f"{start['commit'] or unknown}{'-dirty' * bool(start['dirty'])}" for start in starts})


def is_finished(run: Path) -> bool:
    """Whether a run came to its end, its own or a callback's."""
    manifest = run / "manifest.json"
    ends = ("complete", "stopped")
    return manifest.exists() and json.loads(manifest.read_text())["starts"][-1]["status"] in ends
