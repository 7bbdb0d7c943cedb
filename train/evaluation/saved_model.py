"""A model on disk without a learner: open it as an agent, evaluate it, or score trajectories with it."""

import asyncio
import contextlib
import errno
import shutil
import tempfile
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
from rocstar.engine.types import Trajectory
from rocstar.train.evaluation import provenance
from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
from rocstar.train.evaluation.evaluate_sets import evaluate_sets
from rocstar.train.evaluation.evaluation_folder import ATTEMPTS, Contaminants, EvaluationFolder, recipe_overlap
from rocstar.train.evaluation.results import Evaluation
from rocstar.train.evaluation.sets import EvaluationSet, check_room, evaluation_sets
from rocstar.train.learner.checkpoint import set_threads
from rocstar.train.learner.model_io import check_can_load, chosen_model, load_model, load_tokenizer
from rocstar.train.learner.policy_model import PolicyModel
from rocstar.train.learner.token_scores import TokenScores as TokenScores
from rocstar.train.learner.token_scores import token_scores
from rocstar.train.learner.world import deterministic_torch, local_device
from rocstar.train.plan.preflight import Findings, check_sets, examine_engine, load_all_tasks
from rocstar.train.plan.prompts import dated
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.load import to_toml
from rocstar.train.record.manifest import recipe_hash, recorded, write_start
from rocstar.train.record.run_directory import (
    CONFIG,
    LOCK,
    MANIFEST,
    claim,
    discard_if_unused,
    make_folder,
    write_config,
)
from rocstar.train.serving.agent import max_positions as max_positions
from rocstar.train.serving.agent import open_agent, open_sandbox
from rocstar.train.serving.backend import backend_of
from rocstar.train.tasks.chat_format import chat_format
from rocstar.train.tasks.verify import num_answers as num_answers

T = TypeVar("T")
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The result of an evaluation, with its model and recipe."""

    results: Mapping[str, Evaluation]
    """By the name of the set, in the recipe's order."""
    seed: int
    model: str
    recipe: str
    """The hash of the resolved recipe, `model` included."""

    @property
    def result(self) -> Evaluation:
        """The result of the first set."""
        return next(iter(self.results.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """The options of an evaluation."""

    limit: int = 0
    """Use only the first `limit` tasks of each set; 0 = the recipe's limit."""
    out: Path | None = None
    """The folder, or None to discard the attempts."""
    resume: bool = False
    """Continue the stopped evaluation in `out`."""
    is_own: bool = True
    """True if the sets are the recipe's, which excludes them from its training; False if chosen by
    options."""
    write_page: Callable[[Path], object] = lambda folder: None
    """Writes report.html of the folder."""


def evaluate_model(recipe: Recipe, model: str | None, **order: Any) -> Evaluated:
    """Return avg@k and pass@k on the recipe's sets. `order`: the fields of `EvaluationOptions`.

    Raises:
        ConfigError: there are no tasks, no such model, or `out` is not empty or not writable.
        TrainingStopped: no attempt was scored, or writing `out` failed.
    """
    with _evaluation(recipe, model, EvaluationOptions(**order)) as work:
        return run_to_end(work)


async def evaluate_in_loop(recipe: Recipe, model: str | None, **order: Any) -> Evaluated:
    """Run `evaluate_model` in a running event loop."""
    with _evaluation(recipe, model, EvaluationOptions(**order)) as work:
        return await work


@contextlib.contextmanager
def _evaluation(
    recipe: Recipe, model: str | None, order: EvaluationOptions
) -> Iterator[Coroutine[None, None, Evaluated]]:
    """Yield the coroutine of the evaluation; await it inside."""
    check_sets(recipe)
    recipe = dated(recipe, model, former=order.out if order.resume else None)
    if order.out is None:
        with tempfile.TemporaryDirectory(prefix="rocstar-") as folder:
            with _evaluation_into(Path(folder), recipe, model, order) as work:
                yield work
        return
    out = order.out
    if not order.resume:
        make_folder(out)
    elif not (out / CONFIG).is_file() or not (out / MANIFEST).is_file():
        raise ConfigError(f"--out {str(out)!r} holds no evaluation to resume. Omit --resume.")
    with claim(out, resume=False):
        try:
            with _evaluation_into(out, recipe, model, order) as work:
                yield work
            order.write_page(out)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise TrainingStopped(
                f"cannot write {str(out)!r}: {error.strerror}. Finished attempts are kept; free some "
                "space, then pass --resume"
            ) from error
        finally:
            (out / LOCK).unlink(missing_ok=True)
            if not any(path.stat().st_size for path in (out / ATTEMPTS).glob("*.jsonl*")):
                shutil.rmtree(out / ATTEMPTS, ignore_errors=True)
                discard_if_unused(out)


@contextlib.contextmanager
def _evaluation_into(
    out: Path, recipe: Recipe, model: str | None, order: EvaluationOptions
) -> Iterator[Coroutine[None, None, Evaluated]]:
    if order.limit:
        limited = [config.model_copy(update={"limit": order.limit}) for config in recipe.eval]
        recipe = recipe.model_copy(update={"eval": limited})
    tasks = load_all_tasks(recipe, model, built_in=load_tasks_of)
    recipe = with_model(recipe, model)
    sets = evaluation_sets(recipe, tasks.heldout)
    check_room(recipe, max_positions(recipe))
    contaminants = recipe_overlap(tasks.learned, left_out=order.is_own)
    write_config(out, to_toml(recipe), is_started=order.resume)
    former = provenance.last_facts(out) if order.resume else None
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
    async with open_engine_and_agent(recipe) as (_, agent):
        path = recipe.model.path
        weights = provenance.model_folder(path) if backend_of(recipe).reads_weights else None
        facts = provenance.identity(recipe, sets, provenance.model_digests(weights, agent.chat.template))
        if former is not None and (changed := provenance.differences(former, facts)):
            raise ConfigError(
                f"cannot resume {str(folder.directory)!r}: it was started with other inputs: "
                f"{'; '.join(changed)}. Restore them, or pass another --out"
            )
        entry["evaluation"] = facts | {
            "settings": provenance.settings_facts(recipe, sets, step=0),
            "sandbox": await provenance.sandbox_facts(agent.tools),
        }
        write_start(folder.directory, entry)
        found = await evaluate_sets(
            agent, sets, folder, recipe=recipe, step=0, decode=agent.chat.decode, contaminants=contaminants
        )
    entry["files"] = provenance.file_digests(folder.directory, folder.files(list(found)))
    return Evaluated(results=found, seed=recipe.run.seed, model=path, recipe=recipe_hash(recipe))


def with_model(recipe: Recipe, model: str | None) -> Recipe:
    """Return the recipe with the path of `model`. ConfigError if there is no model to load."""
    path = chosen_model(recipe, model)
    check_can_load(path)
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": path})})


def run_to_end(work: Coroutine[None, None, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@contextlib.asynccontextmanager
async def open_engine_and_agent(
    recipe: Recipe, *, max_response_tokens: int = 1, max_turns: int = 1
) -> AsyncIterator[tuple[RolloutEngine, Agent]]:
    """Start engine and sandbox of a recipe `with_model`, and open the agent that calls them."""
    path = recipe.model.path
    set_threads(recipe.run.threads)
    tokenizer = load_tokenizer(path)
    chat = chat_format(recipe, tokenizer)
    found = Findings()
    examine_engine(recipe, found, learns=False)
    found.refuse()
    with (
        deterministic_torch(recipe.engine.deterministic, local_device()),
        ThreadPoolExecutor(1, thread_name_prefix="device") as thread,
    ):
        thread.submit(set_threads, recipe.run.threads or torch.get_num_threads()).result()
        backend = backend_of(recipe)
        async with (
            open_sandbox(recipe) as sandbox,
            backend.open(recipe, path, thread) as engine,
            open_agent(
                recipe, engine, chat, sandbox, max_response_tokens=max_response_tokens, max_turns=max_turns
            ) as agent,
        ):
            yield engine, agent


TOKENS_PER_MICROBATCH: Final = 8192
"""Input tokens of a forward; a longer trajectory has its own."""


class TokenScorer:
    """Weights in float32, as the learner loads them, and the tokenizer of one directory."""

    def __init__(self, path: str, *, threads: int) -> None:
        """Load a model. `threads`: as `run.threads`. ConfigError for an unsupported model."""
        set_threads(threads)
        check_can_load(path)
        self.path = path
        self.text = TextOfIds(load_tokenizer(path))
        self._policy = PolicyModel(load_model(path, "float32"))

    def score(self, trajectories: Sequence[Trajectory], *, temperature: float) -> list[TokenScores]:
        """Return entropies and log-probs of each trajectory. ConfigError if these weights cannot have
        written it, or give values that are not finite."""
        try:
            scores = token_scores(
                self._policy, trajectories, temperature=temperature, tokens_per_microbatch=TOKENS_PER_MICROBATCH
            )
        except ValueError as error:
            raise ConfigError(
                f"{self.path!r} cannot score these records: {error}. Pass the model that wrote them."
            ) from None
        if not all(one.is_finite for one in scores):
            raise ConfigError(f"{self.path!r} gives entropies that are not finite. Check its weights.")
        return scores


class TextOfIds:
    """Text of ids with special tokens. The text of a single token is cached."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> str:
        text = self._known.get(ids[0]) if len(ids) == 1 else None
        if text is None:
            text = str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
            if len(ids) == 1:
                self._known[ids[0]] = text
        return text
