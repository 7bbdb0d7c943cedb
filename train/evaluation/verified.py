"""`rocstar eval --verify FOLDER`: an evaluation held against its own manifest.

    files      ──digests──────────────────────────> as they were when the evaluation ended
    records    ──numbers──────────────────────────> results.json, to the byte
    records    ──judge────────────────────────────> the outcomes on record
    model, data, verifier, where they are here ───> the digests on record

What is not on this machine any more is said to be not checked; it is no difference. So are the attempts at a
hidden set, which who publishes an evaluation keeps back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocstar.engine.record.reading import RecordError
from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
from rocstar.train.evaluation.evidence import (
    data_facts,
    differences,
    file_digests,
    model_digests,
    model_folder,
    verifier_digest,
)
from rocstar.train.evaluation.folder import RESULTS, AsBefore, numbers
from rocstar.train.evaluation.rescore import Stored, rescore
from rocstar.train.evaluation.results import results_text
from rocstar.train.evaluation.sets import EvaluationSet, evaluation_sets
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.plan.preflight import load_heldout
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.record.manifest import COMPLETE, ManifestError, read_manifest
from rocstar.train.tasks.chat_format import chat_format

MOST_SHOWN = 20
"""Outcomes that differ, by name; the others are counted."""


@dataclass(slots=True, kw_only=True)
class Verification:
    """What holding an evaluation against its manifest found."""

    differences: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    attempts: int = 0
    """Judged again."""


async def verify(directory: Path) -> Verification:
    """Hold the folder against its manifest. ConfigError for a folder that holds no finished evaluation."""
    stored, found = Stored.open(directory), Verification()
    try:
        starts = [start for start in read_manifest(directory) if "files" in start]
    except ManifestError as error:
        raise ConfigError(str(error)) from None
    if not starts or starts[-1].get("status") != COMPLETE:
        found.differences.append("manifest.json: no start of it tells of an evaluation that came to its end")
        return found
    entry = starts[-1]
    here = _with_attempts(stored, found)
    found.differences += _files(directory, entry["files"], stored, here)
    if not found.differences:
        found.differences += _numbers(here)
    facts: Mapping[str, Any] = entry.get("evaluation", {})
    _identity(stored, facts, found)
    judged = await rescore(here, None)
    found.attempts = judged.attempts
    for name, changed in judged.changed.items():
        found.differences += [f"{name}, judged again: {line}" for line in changed[:MOST_SHOWN]]
        if len(changed) > MOST_SHOWN:
            found.differences.append(f"{name}: {len(changed) - MOST_SHOWN} more outcomes differ")
    return found


def _with_attempts(stored: Stored, found: Verification) -> Stored:
    """The evaluation without the hidden sets whose attempts were kept back when the folder was passed on."""
    here = [one for one in stored.sets if not one.is_hidden or stored.folder.attempts(one.name).is_file()]
    gone = [one.name for one in stored.sets if one not in here]
    found.unchecked += [f"attempts/{name}.jsonl: of a hidden set, and not here" for name in gone]
    return dataclasses.replace(stored, sets=here)


def _files(directory: Path, written: Mapping[str, str], stored: Stored, here: Stored) -> list[str]:
    gone = [one.name for one in stored.sets if one not in here.sets]
    kept_back = set(stored.folder.files(gone)) - {RESULTS}
    was = {name: digest for name, digest in written.items() if name not in kept_back}
    there = [name for name in was if (directory / name).is_file()]
    missing = [f"{name}: is missing" for name in was if name not in there]
    return missing + differences(was, file_digests(directory, there))


def _numbers(stored: Stored) -> list[str]:
    """Whether the records give the numbers. What may have been learned is not asked again."""
    try:
        told, _ = numbers(stored.sets, stored.folder, AsBefore(sets=stored.results["sets"]))
    except (RecordError, TrainingStopped) as error:
        return [f"results.json: the records give none: {error}"]
    all_sets = {name: told.get(name, former) for name, former in stored.results["sets"].items()}
    text = results_text(all_sets, seed=stored.results["seed"], step=stored.results["step"])
    if text == stored.folder.results.read_text(encoding="utf-8"):
        return []
    return [
        "results.json: the records give other numbers",
        *differences(stored.results["sets"], told)[:MOST_SHOWN],
    ]


def _identity(stored: Stored, facts: Mapping[str, Any], found: Verification) -> None:
    """Model, data and verifier, as far as they are here."""
    recipe, sets = stored.recipe, stored.sets
    _data(recipe, sets, facts.get("data", {}), found)
    now = {chosen.name: verifier_digest(recipe, chosen) for chosen in sets}
    found.differences += differences(facts.get("verifier", {}), now, "verifier.")
    model: Mapping[str, Any] = facts.get("model", {})
    if model.get("weights") is None:
        found.unchecked.append("model: the manifest has no digest of weights (a run's own, or an endpoint's)")
        return
    folder = model_folder(recipe.model.path)
    if folder is None:
        found.unchecked.append(f"model: {recipe.model.path!r} is not on this machine")
        return
    try:
        template = chat_format(recipe, load_tokenizer(str(folder))).template
    except ConfigError as error:
        found.unchecked.append(f"model: {error}")
        return
    found.differences += differences(model, model_digests(folder, template), "model.")


def _data(recipe: Recipe, sets: Sequence[EvaluationSet], was: Mapping[str, Any], found: Verification) -> None:
    names = {chosen.name for chosen in sets}
    for k, config in enumerate(recipe.eval):
        if config.label not in names:
            continue
        try:
            tasks = load_heldout(k, config, load_tasks_of)
        except ConfigError as error:
            found.unchecked.append(f"data.{config.label}: {error}")
            continue
        alone = recipe.model_copy(update={"eval": [config]})
        chosen = evaluation_sets(alone, {config.label: tasks})[0]
        found.differences += differences(was, {config.label: data_facts(chosen, config.path)}, "data.")
