"""A model on disk without a learner: opened as an agent, or evaluated."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import tempfile
import tomllib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import uvloop
from transformers import PreTrainedTokenizerBase

from rocstar.engine.inference.base import RolloutEngine
from rocstar.engine.progress.status import StatusLine
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Trajectory, Turn
from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
from rocstar.train.evaluation.evaluate_sets import evaluate_sets
from rocstar.train.evaluation.evaluation_folder import ATTEMPTS, Contaminants, EvaluationFolder, RecipeOverlap
from rocstar.train.evaluation.provenance import (
    data_facts,
    differences,
    file_digests,
    judge_facts,
    last_facts,
    model_digests,
    model_folder,
    sandbox_facts,
    settings_facts,
    verifier_digest,
)
from rocstar.train.evaluation.report.eval_report import write_eval_report
from rocstar.train.evaluation.results import Evaluation
from rocstar.train.evaluation.sets import EvaluationSet, check_room, evaluation_sets
from rocstar.train.learner import checkpoint
from rocstar.train.learner.checkpoint import set_threads
from rocstar.train.learner.determinism import deterministic_torch
from rocstar.train.learner.model_io import (
    check_can_load,
    load_max_positions,
    load_model,
    load_tokenizer,
    model_on_disk,
)
from rocstar.train.learner.policy_model import PolicyModel
from rocstar.train.learner.team import local_device
from rocstar.train.learner.token_scores import TokenScores as TokenScores
from rocstar.train.learner.token_scores import token_scores
from rocstar.train.plan.preflight import check_engine, check_sets, loaded_tasks
from rocstar.train.plan.prompts import dated
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.stage_config import StageConfig
from rocstar.train.recipe.toml import to_toml
from rocstar.train.record.manifest import recipe_hash, recorded, write_start
from rocstar.train.record.run_directory import CONFIG, LOCK, MANIFEST, claim, discard_if_unused
from rocstar.train.record.targets import make_folder
from rocstar.train.serving.agent import make_agent, open_sandbox
from rocstar.train.serving.backend import backend_of
from rocstar.train.tasks.chat_format import chat_format
from rocstar.train.tasks.verify import num_answers

T = TypeVar("T")
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An evaluation with what it is of."""

    results: Mapping[str, Evaluation]
    """By the name of the set, in the recipe's order."""
    seed: int
    model: str
    recipe: str
    """The hash of the resolved recipe, `model` in it."""

    @property
    def result(self) -> Evaluation:
        """Of the first set, which is the only one of most recipes."""
        return next(iter(self.results.values()))

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {"seed": self.seed, "model": self.model, "recipe": self.recipe}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """What is to be evaluated, and where it is kept."""

    limit: int = 0
    """Only the first so many tasks of each set; 0 = as the recipe says."""
    out: Path | None = None
    """The folder; None = the attempts are not kept."""
    resume: bool = False
    """`out` holds an evaluation that was stopped: go on with it."""
    is_own: bool = True
    """The sets are those of the recipe, which keeps them out of its training; else they were chosen now."""


def evaluate_model(recipe: Recipe, model: str | None, **order: Any) -> Evaluated:
    """avg@k and pass@k on the recipe's sets. `order`: the fields of `EvaluationOptions`.

    Raises:
        ConfigError: there are no tasks, no such model, or `out` holds something or cannot be written.
        TrainingStopped: no attempt was scored, or `out` could not be written in the end.
    """
    with _evaluation(recipe, model, EvaluationOptions(**order)) as work:
        return run_to_end(work)


async def evaluate_in_loop(recipe: Recipe, model: str | None, **order: Any) -> Evaluated:
    """`evaluate_model` in a loop that runs already."""
    with _evaluation(recipe, model, EvaluationOptions(**order)) as work:
        return await work


@contextlib.contextmanager
def _evaluation(
    recipe: Recipe, model: str | None, order: EvaluationOptions
) -> Iterator[Coroutine[None, None, Evaluated]]:
    """The work, to be run to its end inside."""
    check_sets(recipe)
    recipe = dated(recipe, model, former=order.out if order.resume else None)
    if order.out is None:
        with tempfile.TemporaryDirectory(prefix="rocstar-") as folder:
            with _evaluation_into(Path(folder), recipe, model, order) as work:
                yield work
        return
    out = order.out
    if order.resume:
        check_resumable(out)
    else:
        make_folder(out)
    with claim(out, resume=False):
        try:
            with _evaluation_into(out, recipe, model, order) as work:
                yield work
            write_eval_report(out, reveal=False)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise TrainingStopped(
                f"{str(out)!r} could not be written ({error.strerror}); what was made so far is there: make "
                "room, and pass --resume"
            ) from error
        finally:
            (out / LOCK).unlink(missing_ok=True)
            _discard_if_unused(out)


def check_resumable(out: Path) -> None:
    """ConfigError for a folder that holds no evaluation."""
    if not (out / CONFIG).is_file() or not (out / MANIFEST).is_file():
        raise ConfigError(f"--out {str(out)!r} holds no evaluation to go on with; leave --resume out")


def _discard_if_unused(out: Path) -> None:
    """Take back a folder without an attempt."""
    attempts = out / ATTEMPTS
    if any(path.stat().st_size for path in attempts.glob("*.jsonl*")):
        return
    shutil.rmtree(attempts, ignore_errors=True)
    discard_if_unused(out)


@contextlib.contextmanager
def _evaluation_into(
    out: Path, recipe: Recipe, model: str | None, order: EvaluationOptions
) -> Iterator[Coroutine[None, None, Evaluated]]:
    if order.limit:
        limited = [config.model_copy(update={"limit": order.limit}) for config in recipe.eval]
        recipe = recipe.model_copy(update={"eval": limited})
    tasks = loaded_tasks(recipe, model, built_in=load_tasks_of)
    recipe = with_model(recipe, model)
    sets = evaluation_sets(recipe, tasks.heldout)
    if backend_of(recipe).reads_weights:
        check_room(recipe, load_max_positions(recipe.model.path))
    contaminants = RecipeOverlap(learned=tasks.learned, left_out=order.is_own)
    text, path = to_toml(recipe), out / CONFIG
    if order.resume and tomllib.loads(path.read_text(encoding="utf-8")) != tomllib.loads(text):
        raise ConfigError(
            f"{str(out)!r} was begun with another recipe, model or options ({CONFIG} has them); go on with "
            "those, or take another --out"
        )
    former = last_facts(out) if order.resume else None
    path.write_text(text, encoding="utf-8")
    with recorded(out, recipe, world_size=1) as entry, StatusLine():
        yield _evaluate(recipe, sets, EvaluationFolder(out), contaminants, entry, former)


async def _evaluate(
    recipe: Recipe,
    sets: Sequence[EvaluationSet],
    folder: EvaluationFolder,
    contaminants: Contaminants,
    entry: dict[str, Any],
    former: dict[str, Any] | None,
) -> Evaluated:
    path = recipe.model.path
    async with open_agent(recipe, None, 1, 1) as agent:
        facts = identity(recipe, sets, agent.chat.template)
        if former is not None and (changed := differences(former, facts)):
            raise ConfigError(
                f"--resume cannot go on in {str(folder.directory)!r}, which was begun with something else: "
                f"{'; '.join(changed)}; give that back, or take another --out"
            )
        entry["evaluation"] = facts | {
            "settings": settings_facts(recipe, sets, step=0),
            "sandbox": await sandbox_facts(agent.tools),
        }
        write_start(folder.directory, entry)
        found = await evaluate_sets(
            agent,
            sets,
            folder,
            recipe=recipe,
            step=0,
            decode=agent.chat.decode,
            contaminants=contaminants,
        )
    entry["files"] = file_digests(folder.directory, folder.files(list(found)))
    return Evaluated(results=found, seed=recipe.run.seed, model=path, recipe=recipe_hash(recipe))


def identity(recipe: Recipe, sets: Sequence[EvaluationSet], template: str) -> dict[str, Any]:
    """What an evaluation is of: model, data, verifier. Digests alone; the same wherever it is made."""
    folder = model_folder(recipe.model.path) if backend_of(recipe).reads_weights else None
    paths = {config.label: config.path for config in recipe.eval}
    return {
        "model": model_digests(folder, template),
        "data": {chosen.name: data_facts(chosen, paths[chosen.name]) for chosen in sets},
        "verifier": {chosen.name: verifier_digest(recipe, chosen) for chosen in sets},
        "judge": judge_facts(sets),
    }


def with_model(recipe: Recipe, model: str | None) -> Recipe:
    """The recipe with the model that was meant. ConfigError if there is no model to load."""
    path = model_on_disk(recipe, model)
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": path})})


def last_stage(recipe: Recipe) -> StageConfig:
    if not recipe.stages:
        raise ConfigError("the recipe has no [[stages]]: there are no limits to roll out under")
    return recipe.stages[-1]


def run_to_end(work: Coroutine[None, None, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@contextlib.asynccontextmanager
async def open_agent(
    recipe: Recipe, model: str | None, max_response_tokens: int, max_turns: int
) -> AsyncIterator[Agent]:
    """The agent of a recipe around a model on disk, with its sandbox and engine running."""
    async with open_engine_and_agent(recipe, model, max_response_tokens, max_turns) as (_, agent):
        yield agent


@contextlib.asynccontextmanager
async def open_engine_and_agent(
    recipe: Recipe, model: str | None, max_response_tokens: int, max_turns: int
) -> AsyncIterator[tuple[RolloutEngine, Agent]]:
    """The same, with the engine that the agent talks to."""
    path = model_on_disk(recipe, model)
    checkpoint.set_threads(recipe.run.threads)
    tokenizer = load_tokenizer(path)
    chat = chat_format(recipe, tokenizer)
    check_engine(recipe)
    with (
        deterministic_torch(recipe.engine.deterministic, local_device()),
        ThreadPoolExecutor(1, thread_name_prefix="device") as thread,
    ):
        thread.submit(checkpoint.set_threads, recipe.run.threads or torch.get_num_threads()).result()
        backend = backend_of(recipe)
        async with open_sandbox(recipe) as sandbox, backend.open(recipe, path, thread) as engine:
            yield (
                engine,
                make_agent(
                    recipe,
                    engine,
                    chat,
                    sandbox,
                    max_response_tokens=max_response_tokens,
                    max_turns=max_turns,
                ),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """An agent whose engine and sandbox run.

    Attributes:
        agent: asks as training does.
        recipe: with the model that was meant.
        max_context: tokens of a prompt and its answer together; None where that is not known here.
        isolation: what confines its tools; empty where the sandbox does not say.
        num_answers: how many answers some turns have.
    """

    agent: Agent
    recipe: Recipe
    max_context: int | None
    isolation: str
    num_answers: Callable[[Sequence[Turn]], int]


def with_date_of(out: Path | None, recipe: Recipe) -> Recipe:
    """The recipe with the date that its prompts show: that of the records in `out`, where there are some."""
    return dated(recipe, former=out)


@contextlib.asynccontextmanager
async def open_model(
    recipe: Recipe, model: str | None, *, max_response_tokens: int, max_turns: int
) -> AsyncIterator[OpenedModel]:
    """Start engine and sandbox; the limits are those of a trajectory. ConfigError for what cannot run."""
    recipe = with_model(recipe, model)
    limit = load_max_positions(recipe.model.path) if backend_of(recipe).reads_weights else None
    async with open_agent(recipe, None, max_response_tokens, max_turns) as agent:
        sandbox = getattr(agent.tools, "sandbox", None)
        yield OpenedModel(
            agent=agent,
            recipe=recipe,
            max_context=limit,
            isolation=str(getattr(sandbox, "isolation", "")),
            num_answers=num_answers,
        )


TOKENS_PER_MICROBATCH: Final = 8192
"""Input tokens of a forward; a longer trajectory has one of its own."""


class TokenScorer:
    """The weights and the tokenizer of one directory."""

    def __init__(self, path: str, *, threads: int) -> None:
        """`threads`: as `run.threads`, 0 = the physical cores. ConfigError for what is no model, or one whose
        entropies are not those of hidden states times a head."""
        set_threads(threads)
        check_can_load(path)
        self.path = path
        self.text = TextOfIds(load_tokenizer(path))
        self._policy = PolicyModel(load_model(path, "float32"))

    def score(self, trajectories: Sequence[Trajectory], *, temperature: float) -> list[TokenScores]:
        """Of each trajectory, in order. ConfigError for what these weights cannot have written, or weights
        that give no numbers."""
        try:
            scores = token_scores(
                self._policy,
                trajectories,
                temperature=temperature,
                tokens_per_microbatch=TOKENS_PER_MICROBATCH,
            )
        except ValueError as error:
            raise ConfigError(
                f"{self.path!r} cannot score these records: {error}; is it the model that wrote them?"
            ) from None
        if not all(one.is_finite for one in scores):
            raise ConfigError(f"{self.path!r} gives entropies that are not finite; are its weights?")
        return scores


class TextOfIds:
    """Text of ids, special tokens shown; that of a token by itself is made once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> str:
        if len(ids) != 1:
            return self._decoded(ids)
        if ids[0] not in self._known:
            self._known[ids[0]] = self._decoded(ids)
        return self._known[ids[0]]

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
