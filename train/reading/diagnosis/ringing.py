"""All alarms, liveness first: tuning advice is for a run that moves. The active ones, step by step,
and the change of held-out questions that one of them needs.

alarms.toml (what each says) + alarms.py (when it sounds) ──> ALARMS ──> Ringing
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from rocstar.sandbox.extras import shell_command
from rocstar.train.evaluation.statistics.intervals import exact_mean
from rocstar.train.evaluation.statistics.paired import paired_difference
from rocstar.train.evaluation.stored_evaluations import EvaluationLocation, StoredEvaluation, find_evaluations
from rocstar.train.reading.diagnosis.alarms import SOUNDS, HeldOutChange, History, Row, Sounds
from rocstar.train.record.callbacks import Callback, RunStart
from rocstar.train.record.metrics import read_metrics
from rocstar.train.record.run_directory import METRICS


class Watch(Callback):
    """Listens to a run. Invariant: after any row its state is that of a replay of all rows so far."""

    def __init__(self) -> None:
        self.tell: Callable[[str], None] = lambda text: None
        """Reports a note; set when the listeners exist."""
        self._run = Path()
        self._ringing = Ringing(self._run)
        self._unreported: list[Episode] = []

    def on_run_start(self, run: RunStart) -> None:
        """Replay the rows of an earlier start. Raise MetricsFileError for a damaged file."""
        self._run, self._ringing = run.directory, Ringing(run.directory)
        path = run.directory / METRICS
        for row in read_metrics(path) if run.step and path.exists() else []:
            if row["step"] <= run.step:
                self._ringing.add_row(row)

    def measured(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics `alarm/NAME` of a step: 1 if active, 0 if over."""
        row = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._unreported += self._ringing.add_row({**row, "step": step, "phase": "rl"})
        found = {f"alarm/{episode.alarm.name}": 0.0 for episode in self._ringing.episodes}
        return found | {f"alarm/{episode.alarm.name}": 1.0 for episode in self._ringing.standing}

    def on_step(self, row: Mapping[str, Any]) -> None:
        """Report the alarms that began with this row."""
        for episode in self._unreported:
            alarm = episode.alarm
            self.tell(
                f"{alarm.kind} alarm {alarm.name} at step {episode.first}: {alarm.says} {episode.seen}. "
                f"More: {shell_command('doctor', self._run)}"
            )
        self._unreported.clear()

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Check the change of an evaluation."""
        self._unreported += self._ringing.add_row(row)
        self.on_step(row)


SEED = 0


class HeldOut:
    """The evaluations of a run.

    ConfigError from each method for one that is damaged.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._place: EvaluationLocation | None = None
        self._read: dict[int, StoredEvaluation] = {}

    def has(self, step: int) -> bool:
        """Return True if there is an evaluation at a step; a new one is looked for in the folder."""
        if self._place is None or step not in self._place.by_step:
            if not any((self._run / "evaluations").glob("step_*/results.json")):
                return False
            self._place = find_evaluations(self._run)
        return step in self._place.by_step

    def change(self, step: int) -> HeldOutChange | None:
        """Return the change up to a step, at which there is one; None if no two share a question."""
        assert self._place is not None
        known = sorted(one for one in self._place.by_step if one is not None and one <= step)
        for first in known[:-1]:
            if differences := _differences(self._at(first), self._at(known[-1])):
                whole, *parts = (
                    paired_difference(sets, np.random.default_rng(SEED))
                    for sets in [list(differences.values()), *([one] for one in differences.values())]
                )
                return HeldOutChange(
                    before=first,
                    after=known[-1],
                    difference=whole.difference,
                    interval=whole.interval,
                    sets=dict(zip(differences, parts, strict=True)),
                )
        return None

    def _at(self, step: int) -> StoredEvaluation:
        assert self._place is not None
        if step not in self._read:
            self._read[step] = self._place.read(step)
        return self._read[step]


def _differences(a: StoredEvaluation, b: StoredEvaluation) -> dict[str, list[float]]:
    """Return by common set B minus A of each question with a score in both."""
    found = {}
    for name in sorted(a.sets.keys() & b.sets.keys()):
        of_a, of_b = a.sets[name], b.sets[name]
        pairs = [(_mean(of_a[q]), _mean(of_b[q])) for q in sorted(of_a.keys() & of_b.keys())]
        found[name] = [y - x for x, y in pairs if x is not None and y is not None]
    return {name: differences for name, differences in found.items() if differences}


def _mean(scores: tuple[float | None, ...]) -> float | None:
    return exact_mean([score for score in scores if score is not None])


Kind = Literal["liveness", "health", "advice"]
KINDS: Final[tuple[Kind, ...]] = ("liveness", "health", "advice")
"""In the order of output: progress of the run, health of the training, advice on settings."""

Witness = Literal[
    "truncated", "failed", "tool_errors", "undecodable", "answers", "calls", "length", "loops", "timeouts"
]
"""The property of a trajectory that shows an alarm; see `witnesses`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One signature."""

    name: str
    kind: Kind
    says: str
    """The meaning of the alarm, in one sentence."""
    definition: str
    """When it sounds, in the names of metrics.jsonl."""
    source: str
    """Where the definition comes from."""
    todo: str
    """Checks and changes to make."""
    needs: tuple[str, ...]
    """Metrics without which nothing can be said."""
    sounds: Sounds
    witness: Witness | None = None
    """Which trajectories show it; None where none does."""


_ENTRIES: Final = tomllib.loads(Path(__file__).with_name("alarms.toml").read_text(encoding="utf-8"))
ALARMS: Final = tuple(
    sorted(
        (
            Alarm(name=name, sounds=SOUNDS[name], **{**entry, "needs": tuple(entry["needs"])})
            for name, entry in _ENTRIES.items()
        ),
        key=lambda alarm: KINDS.index(alarm.kind),
    )
)

QUIET: Final = 5
"""Steps of silence after which an alarm is over; one that comes back sooner is the same."""


@dataclass(slots=True, kw_only=True)
class Episode:
    """An alarm from its first step to its last."""

    alarm: Alarm
    first: int
    last: int
    seen: str
    """Evidence at the first step."""
    now: str
    """Evidence at the last."""


class Ringing:
    """The episodes of a run, from its rows in order.

    Invariant: an alarm has at most one active episode, and a new one begins only after QUIET silent
    steps.
    """

    def __init__(self, run: Path) -> None:
        self.rows: list[Row] = []
        """Of RL steps."""
        self.episodes: list[Episode] = []
        """All, in the order of their beginnings."""
        self._evaluations = HeldOut(run)
        self._change: HeldOutChange | None = None
        self._open: dict[str, Episode] = {}

    @property
    def standing(self) -> list[Episode]:
        """Those that are not over, liveness first."""
        return [self._open[alarm.name] for alarm in ALARMS if alarm.name in self._open]

    def add_row(self, row: Row) -> list[Episode]:
        """Return the episodes that begin with a row. ConfigError for a damaged evaluation."""
        step = int(row["step"])
        if row["phase"] == "rl":
            self.rows.append(row)
        else:
            # A difficulty filter has rows of the phase eval, too.
            is_evaluation = row["phase"] == "eval" and any(name.startswith("eval/") for name in row)
            if not (is_evaluation and self._evaluations.has(step)):
                return []
            self._change = self._evaluations.change(step)
        return self._look(History(rows=self.rows, held_out=self._change), step)

    def _look(self, history: History, step: int) -> list[Episode]:
        begun = []
        for alarm in ALARMS:
            seen, standing = alarm.sounds(history), self._open.get(alarm.name)
            if seen is None:
                if standing is not None and step - standing.last >= QUIET:
                    del self._open[alarm.name]
            elif standing is not None:
                standing.last, standing.now = step, seen
            else:
                begun.append(Episode(alarm=alarm, first=step, last=step, seen=seen, now=seen))
                self._open[alarm.name] = begun[-1]
        self.episodes += begun
        return begun
