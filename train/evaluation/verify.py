"""`rocstar eval --verify FOLDER` and `--check-set`: compare an evaluation with its manifest, a judge with
golds.

    files      ──digests──────────────────────────> unchanged since the evaluation ended
    records    ──numbers──────────────────────────> results.json, byte for byte
    records    ──judge────────────────────────────> the stored outcomes
    model, data, verifier, if on this machine ────> the stored digests

Parts that are missing on this machine are reported as not checked, not as differences. So are the attempts at
a hidden set, which are not published.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rocstar.engine.chat.toolcalls import parse_tool_calls
from rocstar.engine.record.json_record import RecordError
from rocstar.engine.rollout.rollout import Judge
from rocstar.engine.types import Attempt, Scored, Task, Turn
from rocstar.train.evaluation.benchmarks.benchmark import tasks_digest
from rocstar.train.evaluation.benchmarks.registry import find, load_tasks_of
from rocstar.train.evaluation.evaluation_folder import RESULTS, numbers, stored_overlap
from rocstar.train.evaluation.provenance import (
    data_facts,
    differences,
    file_digests,
    model_digests,
    model_folder,
    verifier_digests,
)
from rocstar.train.evaluation.rescore import FinishedEvaluation, Regrader, build_judge, rescore
from rocstar.train.evaluation.results import results_text
from rocstar.train.evaluation.sets import EvaluationSet, evaluation_sets
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.plan.preflight import load_heldout
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.eval_config import EvalConfig
from rocstar.train.record.manifest import COMPLETE, ManifestError, read_manifest
from rocstar.train.serving.agent import open_sandbox
from rocstar.train.tasks.chat_format import chat_format
from rocstar.train.tasks.reward import VERIFIER_FLAVOUR

MOST_SHOWN = 20
"""The number of differing outcomes that are listed; the others are counted."""


@dataclass(slots=True, kw_only=True)
class Verification:
    """The result of comparing an evaluation with its manifest."""

    differences: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    attempts: int = 0
    """The number of attempts that were judged again."""


async def verify(directory: Path) -> Verification:
    """Compare a folder with its manifest. ConfigError if it holds no finished evaluation."""
    stored, found = FinishedEvaluation.open(directory), Verification()
    try:
        starts = [start for start in read_manifest(directory) if "files" in start]
    except ManifestError as error:
        raise ConfigError(str(error)) from None
    if not starts or starts[-1].get("status") != COMPLETE:
        found.differences.append("manifest.json: it has no evaluation that completed")
        return found
    entry = starts[-1]
    # A hidden set's attempts may be missing, because they are not published.
    sets = [one for one in stored.sets if not one.is_hidden or stored.folder.attempts(one.name).is_file()]
    here = dataclasses.replace(stored, sets=sets)
    gone = set(stored.folder.files([one.name for one in stored.sets if one not in sets])) - {RESULTS}
    found.unchecked += [f"{name}: a hidden set, not on this machine" for name in sorted(gone)]
    was = {name: digest for name, digest in entry["files"].items() if name not in gone}
    there = [name for name in was if (directory / name).is_file()]
    found.differences += [f"{name}: is missing" for name in was if name not in there]
    found.differences += differences(was, file_digests(directory, there))
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


def _numbers(stored: FinishedEvaluation) -> list[str]:
    """Compare results.json with the records. Overlap with training is taken from the stored results."""
    try:
        recomputed, _ = numbers(stored.sets, stored.folder, partial(stored_overlap, sets=stored.results["sets"]))
    except (RecordError, TrainingStopped) as error:
        return [f"results.json: cannot compute it from the records: {error}"]
    all_sets = {name: recomputed.get(name, former) for name, former in stored.results["sets"].items()}
    text = results_text(all_sets, seed=stored.results["seed"], step=stored.results["step"])
    if text == stored.folder.results.read_text(encoding="utf-8"):
        return []
    return [
        "results.json: the numbers differ from those of the records",
        *differences(stored.results["sets"], recomputed)[:MOST_SHOWN],
    ]


def _identity(stored: FinishedEvaluation, facts: Mapping[str, Any], found: Verification) -> None:
    """Compare model, data and verifier, if they are on this machine."""
    recipe, sets = stored.recipe, stored.sets
    _data(recipe, sets, facts.get("data", {}), found)
    found.differences += differences(facts.get("verifier", {}), verifier_digests(recipe, sets), "verifier.")
    model: Mapping[str, Any] = facts.get("model", {})
    if model.get("weights") is None:
        found.unchecked.append("model: the manifest has no digest of weights (a run or an endpoint)")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCheck:
    """The judge's verdicts on a set's golds and on wrong answers beside them."""

    name: str
    digest: str
    is_known: bool | None
    golds: int
    refused: list[str]
    """Tasks whose gold was judged wrong."""
    near_misses: int
    accepted: list[str]
    """Tasks with a wrong answer that was judged correct."""

    @property
    def is_right(self) -> bool:
        return not self.refused and not self.accepted


async def check_set(name: str, path: str) -> SetCheck:
    """Judge a built-in set's golds and near misses. ConfigError if no copy is available."""
    benchmark, config = find(name), EvalConfig(set=name, path=path)
    tasks, recipe = load_tasks_of(config), Recipe(eval=[config])
    digest = tasks_digest(tasks)
    chosen = evaluation_sets(recipe, {name: tasks})[0]
    async with open_sandbox(recipe, flavours=[VERIFIER_FLAVOUR]) as sandbox:
        judge = build_judge(recipe, chosen, sandbox)
        right = [(task, text) for task in tasks if (text := benchmark.gold(task)) is not None]
        refused = await _verdicts(judge, right)
        wrong = [(task, text) for task in tasks if (text := benchmark.near_miss(task)) is not None]
        accepted = await _verdicts(judge, wrong)
    return SetCheck(
        name=name,
        digest=digest,
        is_known=benchmark.source.is_known(digest),
        golds=len(right),
        refused=[task for task, is_right in refused if not is_right],
        near_misses=len(wrong),
        accepted=[task for task, is_right in accepted if is_right],
    )


async def _verdicts(judge: Judge, texts: Sequence[tuple[Task, str | Sequence[str]]]) -> list[tuple[str, bool]]:
    """Return each task's id, and True if its text, of one turn or several, was judged correct."""
    regrader = Regrader(judge)

    async def one(task: Task, said: str | Sequence[str]) -> tuple[str, bool]:
        turns = tuple(
            Turn(start=0, end=0, text=text, stopped=True, calls=parse_tool_calls(text))
            for text in ([said] if isinstance(said, str) else said)
        )
        outcome = await regrader.outcome(Attempt(task=task, turns=turns, is_truncated=False))
        return task.id, isinstance(outcome, Scored) and outcome.is_correct

    return list(await asyncio.gather(*(one(task, text) for task, text in texts)))
