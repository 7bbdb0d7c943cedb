"""An evaluation is a folder: every attempt as a record, and the numbers made of these records.

    attempts/NAME.jsonl   trajectory records of a set (engine/record/), in the order of its tasks
    results.json          all numbers of all sets (results.py): no time, no path, the same bytes every time
    manifest.json         what was evaluated and how (evidence.py), when, and how it ended
    config.toml           the recipe, where the folder stands alone

    evaluate_sets: per set  AttemptsFile ──tasks not done yet──> attempts ──group by group──> AttemptsFile
                   then     records ──> results.json

Who waits: a group for its records to lie on the disk; the sets one after the other. A run keeps the folder of
its evaluation at step N as evaluations/step_N.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rocstar.engine.record.reading import from_record, read_records
from rocstar.train.evaluation.evaluate import Evaluation, nothing_scored
from rocstar.train.evaluation.results import evaluation, read_questions, results_text, set_results
from rocstar.train.evaluation.sets import EvaluationSet
from rocstar.train.record.learned_questions import FOUND, Learned
from rocstar.train.record.run_directory import replace_text

ATTEMPTS, RESULTS = "attempts", "results.json"
WITHHELD = "# Their licence asks that questions are not shown: keep these files to yourself.\n"


@dataclass(frozen=True, slots=True)
class Folder:
    """The places of an evaluation's files."""

    directory: Path

    @property
    def results(self) -> Path:
        return self.directory / RESULTS

    def attempts(self, name: str) -> Path:
        """The records of a set."""
        return self.directory / ATTEMPTS / f"{name}.jsonl"

    def withhold(self, name: str) -> None:
        """Keep the records of a set that is not to be shown out of every git commit of this folder."""
        path, line = self.directory / ATTEMPTS / ".gitignore", f"{name}.jsonl*\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.read_text(encoding="utf-8") if path.exists() else WITHHELD
        if line not in known:
            path.write_text(known + line, encoding="utf-8")

    def files(self, names: Sequence[str]) -> list[str]:
        """What a finished evaluation of these sets holds, by place in the folder."""
        return [RESULTS, *(f"{ATTEMPTS}/{name}.jsonl" for name in names)]


def run_folder(run_dir: Path, step: int) -> Path:
    """Where a run keeps its evaluation at `step`."""
    return run_dir / "evaluations" / f"step_{step:06d}"


def replace_folder(made: Path, target: Path) -> None:
    """Put a finished folder in the place of the one that was there."""
    former = target.with_name(f"{target.name}.former")
    shutil.rmtree(former, ignore_errors=True)
    if target.exists():
        target.rename(former)
    made.rename(target)
    shutil.rmtree(former, ignore_errors=True)


class Contaminants(Protocol):
    """What of a set the policy may have learned: `questions` by id with their rule; None = not known."""

    def found(self, chosen: EvaluationSet) -> Mapping[str, Any] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRecipe:
    """What the tasks and conversations of the recipe have of it."""

    learned: Learned
    left_out: bool
    """The recipe that trained it holds these very sets out."""

    def found(self, chosen: EvaluationSet) -> Mapping[str, Any] | None:
        return self.learned.found(chosen.name, chosen.tasks, left_out=self.left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsBefore:
    """What the results of an earlier time have of it."""

    sets: Mapping[str, Any]

    def found(self, chosen: EvaluationSet) -> Mapping[str, Any] | None:
        told = self.sets.get(chosen.name, {}).get("contamination")
        return None if told is None else {key: told[key] for key in FOUND}


def write_numbers(
    sets: Sequence[EvaluationSet],
    folder: Folder,
    *,
    seed: int,
    step: int,
    contaminants: Contaminants | None = None,
) -> dict[str, Evaluation]:
    """Make results.json of the records, which are there. Raises as `evaluate_sets`."""
    told, found = numbers(sets, folder, contaminants)
    replace_text(folder.results, results_text(told, seed=seed, step=step))
    return found


def numbers(
    sets: Sequence[EvaluationSet], folder: Folder, contaminants: Contaminants | None
) -> tuple[dict[str, Any], dict[str, Evaluation]]:
    """What the records give: the sets of results.json, and what people are shown."""
    told, found = {}, {}
    for chosen in sets:
        questions = read_questions(folder.attempts(chosen.name), chosen)
        if not any(question.scored for question in questions.values()):
            raise nothing_scored([from_record(r) for r in read_records(folder.attempts(chosen.name))])
        contaminated = contaminants.found(chosen) if contaminants else None
        told[chosen.name] = set_results(questions, chosen, contaminated)
        found[chosen.name] = evaluation(questions, k=chosen.samples)
    return told, found
