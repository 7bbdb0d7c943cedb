"""`rocstar eval --rescore`: judge the attempts of a stored evaluation again.

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

from rocstar.engine.progress.progress import working
from rocstar.engine.record.json_record import RecordError, encode_judgement, encode_outcome, from_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.rollout.rollout import Judge
from rocstar.engine.types import Attempt, Failed, FinishReason, Outcome, Trajectory
from rocstar.train.evaluation import evaluation_folder
from rocstar.train.evaluation.provenance import file_digests, judge_facts, last_facts, verifier_digests
from rocstar.train.evaluation.results import Evaluation, to_attempt
from rocstar.train.evaluation.sets import EvaluationSet, evaluation_sets
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.recipe.toml_file import to_toml
from rocstar.train.record.manifest import recorded
from rocstar.train.record.run_directory import CONFIG, config_of
from rocstar.train.record.targets import make_folder
from rocstar.train.serving.agent import open_sandbox
from rocstar.train.tasks.own_reward import make_judge
from rocstar.train.tasks.reward import VERIFIER_FLAVOUR, MathJudge
from rocstar.train.tasks.verify import extract_answer

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
        facts = last_facts(stored.folder.directory) or {}
        verifier = verifier_digests(stored.recipe, stored.sets)
        entry["evaluation"] = facts | {"verifier": verifier, "judge": judge_facts(stored.sets)}
        entry["rescored_from"] = file_digests(stored.folder.directory, stored.folder.files(names))
        found = await rescore(stored, out)
        entry["files"] = file_digests(out, evaluation_folder.EvaluationFolder(out).files(names))
    write_page(out)
    return found
