"""`rocstar eval --rescore`, `--verify` and `--check-set`: judge again, and compare an evaluation with its manifest.

    attempts/NAME.jsonl ──chunks of records──> Judge.score ──> the same records with new outcomes

No model is loaded. An attempt that never reached its judge keeps its outcome. The next chunk waits for the
last verdict of this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rocstar.engine.chat.toolcalls import parse_tool_calls
from rocstar.engine.progress.progress import working
from rocstar.engine.record.json_record import RecordError, encode_judgement, encode_outcome, from_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.rollout.rollout import Judge
from rocstar.engine.types import Attempt, Failed, FinishReason, Outcome, Scored, Task, Trajectory, Turn
from rocstar.train.evaluation import evaluation_folder, provenance
from rocstar.train.evaluation.benchmarks.benchmark import tasks_digest
from rocstar.train.evaluation.benchmarks.registry import find, load_tasks_of
from rocstar.train.evaluation.evaluation_folder import RESULTS, numbers, stored_overlap
from rocstar.train.evaluation.results import Evaluation, results_text, to_attempt
from rocstar.train.evaluation.sets import EvaluationSet, evaluation_sets
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.plan.preflight import load_heldout
from rocstar.train.recipe.config import EvalConfig, Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.load import parse_recipe, to_toml
from rocstar.train.record.manifest import COMPLETE, ManifestError, read_manifest, recorded
from rocstar.train.record.run_directory import CONFIG, config_of, make_folder
from rocstar.train.serving.agent import open_sandbox
from rocstar.train.tasks.chat_format import chat_format
from rocstar.train.tasks.own_reward import make_judge
from rocstar.train.tasks.reward import VERIFIER_FLAVOUR, MathJudge
from rocstar.train.tasks.verify import extract_answer

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
    found.differences += provenance.differences(was, provenance.file_digests(directory, there))
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
        *provenance.differences(stored.results["sets"], recomputed)[:MOST_SHOWN],
    ]


def _identity(stored: FinishedEvaluation, facts: Mapping[str, Any], found: Verification) -> None:
    """Compare model, data and verifier, if they are on this machine."""
    recipe, sets = stored.recipe, stored.sets
    _data(recipe, sets, facts.get("data", {}), found)
    found.differences += provenance.differences(
        facts.get("verifier", {}), provenance.verifier_digests(recipe, sets), "verifier."
    )
    model: Mapping[str, Any] = facts.get("model", {})
    if model.get("weights") is None:
        found.unchecked.append("model: the manifest has no digest of weights (a run or an endpoint)")
        return
    folder = provenance.model_folder(recipe.model.path)
    if folder is None:
        found.unchecked.append(f"model: {recipe.model.path!r} is not on this machine")
        return
    try:
        template = chat_format(recipe, load_tokenizer(str(folder))).template
    except ConfigError as error:
        found.unchecked.append(f"model: {error}")
        return
    found.differences += provenance.differences(model, provenance.model_digests(folder, template), "model.")


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
        found.differences += provenance.differences(
            was, {config.label: provenance.data_facts(chosen, config.path)}, "data."
        )


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


CHUNK = 1024
"""Records in memory at a time."""
JUDGE_S = 120.0
"""Seconds for judging one attempt, including its wait for the sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEvaluation:
    """An evaluation on disk: its recipe, its sets without tasks, its numbers."""

    folder: evaluation_folder.EvaluationFolder
    recipe: Recipe
    sets: Sequence[EvaluationSet]
    results: Mapping[str, Any]
    """The content of results.json."""

    @classmethod
    def open(cls, directory: Path) -> FinishedEvaluation:
        """Open a folder. ConfigError if it holds no finished evaluation."""
        folder = evaluation_folder.EvaluationFolder(directory)
        if not folder.results.is_file():
            raise ConfigError(
                f"{str(directory)!r} holds no finished evaluation: there is no {folder.results.name}. Pass "
                "the folder of `rocstar eval --out`, or evaluations/step_N of a run"
            )
        try:
            results = json.loads(folder.results.read_bytes())
            names = list(results["sets"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{str(folder.results)!r} is damaged: {error!r}") from None
        path = directory / CONFIG
        if not path.is_file():  # the folder is part of a run
            path = config_of(directory.parent.parent, int(results.get("step", 0)))
        try:
            recipe = parse_recipe(tomllib.loads(path.read_text(encoding="utf-8")), where=str(path))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{str(directory)!r}: cannot read its recipe {str(path)!r}: {error}") from None
        sets = [chosen for chosen in evaluation_sets(recipe) if chosen.name in names]
        return cls(folder=folder, recipe=recipe, sets=sets, results=results)


@dataclass(slots=True, kw_only=True)
class RescoreResult:
    """The changes by a new judgement."""

    attempts: int = 0
    changed: dict[str, list[str]] = field(default_factory=dict)
    """By set: records with another outcome, as `ID: was .., is ..`."""
    before: dict[str, float | None] = field(default_factory=dict)
    after: dict[str, Evaluation] = field(default_factory=dict)


def build_judge(recipe: Recipe, chosen: EvaluationSet, sandbox: Any) -> Judge:
    judge = chosen.benchmark.judge if chosen.benchmark else None
    return judge() if judge is not None else make_judge(recipe.reward, sandbox)


class Regrader:
    """Judges stored attempts concurrently.

    Invariant: an attempt gets the outcome that the judge gives it alone. The built-in judge reads only the
    task and the boxed answer, so it is called once for siblings with equal answers.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._room = asyncio.Semaphore(4 * (os.cpu_count() or 1))
        self._asked: dict[Hashable, asyncio.Task[Outcome]] = {}

    async def outcomes(self, trajectories: Sequence[Trajectory]) -> list[Outcome]:
        """Return the outcomes in order; an attempt that never reached its judge keeps its own."""
        return list(await asyncio.gather(*map(self._of, trajectories)))

    async def _of(self, t: Trajectory) -> Outcome:
        if t.finish_reason is FinishReason.aborted or t.task.environment is not None:
            return t.outcome  # the reward of an environment is not computed again
        attempt = to_attempt(t)
        if not isinstance(self._judge, MathJudge):
            return await self.outcome(attempt)
        key = attempt.task.id, attempt.is_truncated, extract_answer(attempt)
        if key not in self._asked:
            self._asked[key] = asyncio.create_task(self.outcome(attempt))
        return await self._asked[key]

    async def outcome(self, attempt: Attempt) -> Outcome:
        """Judge one attempt."""
        async with self._room:
            try:
                deadline = asyncio.get_running_loop().time() + JUDGE_S
                return await self._judge.score(attempt, deadline=deadline)
            except TimeoutError:
                return Failed(kind="deadline", retryable=True, detail=f"not judged within {JUDGE_S} s")


def _chunks(path: Path) -> Iterator[list[dict[str, Any]]]:
    if not path.is_file():
        raise ConfigError(f"cannot judge attempts again: {str(path)!r} does not exist")
    records = read_records(path)
    try:
        while chunk := list(itertools.islice(records, CHUNK)):
            yield chunk
    except RecordError as error:
        raise ConfigError(str(error)) from None


async def rescore(stored: FinishedEvaluation, out: Path | None) -> RescoreResult:
    """Judge each attempt again. With `out`, write the new outcomes and numbers into a new folder."""
    found = RescoreResult(before={name: numbers.get("avg") for name, numbers in stored.results["sets"].items()})
    target = evaluation_folder.EvaluationFolder(out) if out is not None else None
    async with open_sandbox(stored.recipe, flavours=[VERIFIER_FLAVOUR]) as sandbox:
        for chosen in stored.sets:
            judge = build_judge(stored.recipe, chosen, sandbox)
            changed = found.changed.setdefault(chosen.name, [])
            with contextlib.ExitStack() as stack:
                file = None
                if target is not None:
                    path = target.attempts(chosen.name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if chosen.is_hidden:
                        target.withhold(chosen.name)
                    file = stack.enter_context(path.open("w", encoding="ascii"))
                work = stack.enter_context(working(f"judging {chosen.name} again", unit="attempts"))
                regrader = Regrader(judge)
                for records in _chunks(stored.folder.attempts(chosen.name)):
                    outcomes = await regrader.outcomes([from_record(record) for record in records])
                    for record, outcome in zip(records, outcomes, strict=True):
                        found.attempts += 1
                        work.done += 1
                        encoded = encode_outcome(outcome)
                        if encoded != record["outcome"]:
                            changed.append(f"{record['id']}: was {record['outcome']}, is {encoded}")
                        if file is not None:
                            rescored = dataclasses.replace(from_record(record), outcome=outcome)
                            judgement = encode_judgement(outcome, evaluation_folder.evaluation_verdict(rescored))
                            file.write(json.dumps(record | judgement, separators=(",", ":")) + "\n")
    if target is not None:
        found.after = evaluation_folder.write_numbers(
            stored.sets,
            target,
            seed=stored.results["seed"],
            step=stored.results["step"],
            contaminants=partial(evaluation_folder.stored_overlap, sets=stored.results["sets"]),
        )
    return found


async def rescore_into(stored: FinishedEvaluation, out: Path, write_page: Callable[[Path], object]) -> RescoreResult:
    """Rescore into a folder with its own manifest, which names the source."""
    make_folder(out)
    (out / CONFIG).write_text(to_toml(stored.recipe), encoding="utf-8")
    names = [chosen.name for chosen in stored.sets]
    with recorded(out, stored.recipe, world_size=1) as entry:
        facts = provenance.last_facts(stored.folder.directory) or {}
        verifier = provenance.verifier_digests(stored.recipe, stored.sets)
        entry["evaluation"] = facts | {"verifier": verifier, "judge": provenance.judge_facts(stored.sets)}
        entry["rescored_from"] = provenance.file_digests(stored.folder.directory, stored.folder.files(names))
        found = await rescore(stored, out)
        entry["files"] = provenance.file_digests(out, evaluation_folder.EvaluationFolder(out).files(names))
    write_page(out)
    return found
