"""Everything that can be wrong with a recipe is found here, before any work and before a file is written."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rocstar.engine.progress.progress import format_bytes, working
from rocstar.engine.progress.status import StatusLine
from rocstar.engine.types import Task
from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.extras import missing_extra_message
from rocstar.train.data.eval_questions import EvalQuestions
from rocstar.train.groups.advantages import check_advantage
from rocstar.train.learner import hub
from rocstar.train.learner.checkpoint import checkpoint_bytes
from rocstar.train.learner.hub import Unreachable
from rocstar.train.learner.model_io import (
    check_can_load,
    check_model_path,
    check_on_hub,
    checked_folder,
    is_here,
    load_max_positions,
    load_tokenizer,
    nowhere,
)
from rocstar.train.learner.model_size import measure
from rocstar.train.learner.scratch import MAX_POSITIONS
from rocstar.train.learner.sft import read_conversations
from rocstar.train.plan.plan import Machines
from rocstar.train.plan.prompts import PromptCheck
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.recipe.eval_config import EvalConfig
from rocstar.train.recipe.reward_config import RewardConfig
from rocstar.train.record.learned_questions import Learned, Question
from rocstar.train.record.listening import check_callbacks
from rocstar.train.record.run_directory import check_claim, complete_checkpoints
from rocstar.train.serving.agent import REDIS_VARIABLE, workers_url
from rocstar.train.serving.backend import backend_of, check_backend
from rocstar.train.tasks.chat_format import chat_format, check_scratch, conversation_format
from rocstar.train.tasks.compare import unreadable_truths
from rocstar.train.tasks.data import interleave_by_source, load_tasks
from rocstar.train.tasks.own_reward import check_reward
from rocstar.train.tasks.rows import DATA_DIR_VARIABLE
from rocstar.train.tasks.tools import tool_box

REDIS_S = 3.0
T = TypeVar("T")
LoadSet = Callable[[EvalConfig], list[Task]]
"""Reads a built-in set; implemented in train/evaluation/benchmarks/registry.py, a higher layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """All tasks of a recipe, loaded and checked before anything else is built."""

    stages: list[list[Task]]
    heldout: Mapping[str, list[Task]]
    """Tasks of each evaluation set, by label."""
    demonstrations: list[Task]
    learned: Learned = field(default_factory=Learned)
    """The questions of the sets in the recipe's tasks and conversations, before removal."""
    unreadable: list[str] = field(default_factory=list)
    """A line for each source with answers that the judge cannot read."""
    notes: list[str] = field(default_factory=list)
    """How many tasks were left out, a line for each source."""
    left_out: list[str] = field(default_factory=list)
    """The notes of sources of which some were."""
    conversations: list[dict[str, Any]] = field(default_factory=list)
    """Those of sft.data; none of a cold start of demonstrations."""


def check_sets(recipe: Recipe) -> None:
    """ConfigError where a recipe says of no tasks to evaluate on."""
    if not recipe.eval:
        raise ConfigError(
            "the recipe has no [[eval]], no tasks to evaluate on; add one with set = 'NAME' or data = "
            "{ source = ... }, or pass --set NAME"
        )


def nobody_loads(config: EvalConfig) -> list[Task]:
    """The default reader of built-in sets, for recipes without them."""
    raise RuntimeError(f"the set {config.set!r} is built in, and the caller brought nothing that reads it")


@dataclass(slots=True)
class Findings:
    """All problems of a recipe on this machine, and the facts that cannot be checked here."""

    problems: list[str] = field(default_factory=list)
    """A line each: field, reason, fix."""
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Counts of the data, a line each."""
    has_template: bool = True
    """Whether it can be seen here how a conversation is put in words."""
    conversations: list[dict[str, Any]] = field(default_factory=list)
    """Those of sft.data, where they could be read."""

    def collect(self, look: Callable[[], T]) -> T | None:
        """Return the result of `look`; None after an error, which is noted."""
        try:
            return look()
        except ConfigErrors as error:
            found = error.problems
        except ConfigError as error:
            found = [str(error)]
        self.problems += [problem for problem in found if problem not in self.problems]
        return None

    def refuse(self) -> None:
        """Raise the noted problems as one error."""
        if len(self.problems) == 1:
            raise ConfigError(self.problems[0])
        if self.problems:
            raise ConfigErrors(self.problems)


def load_all_tasks(
    recipe: Recipe,
    model: str | None = None,
    *,
    has_template: bool = True,
    built_in: LoadSet = nobody_loads,
    conversations: list[dict[str, Any]] | None = None,
) -> Tasks:
    """Load every data source; no RL task is a held-out one. ConfigErrors for all that cannot be used.

    `model`: the one that will see them, if it is not the recipe's; without its template rows are only read.
    `conversations`: those of sft.data, if they were read already.
    """
    found = Findings()
    shown = PromptCheck(recipe, model) if has_template else None
    loaded, heldout = _load_sources(recipe, shown, found, built_in)
    rows = conversations or found.collect(partial(_conversations_of, recipe)) or []
    found.refuse()
    return _without_eval_questions(recipe, loaded, heldout, rows, found.notes)


def _load_sources(
    recipe: Recipe,
    shown: PromptCheck | None,
    found: Findings,
    built_in: LoadSet,
    absent: Collection[str] = (),
) -> tuple[dict[str, list[Task]], dict[str, list[Task]]]:
    """Load the tasks of each field, and those of each evaluation set by label; note the errors.

    The fields in `absent` are not on this machine, and have no tasks.
    """
    loaded = {
        name: found.collect(partial(_load_read, name, config, shown, recipe.reward, found)) or []
        for name, config in data_sources(recipe)
        if name not in absent
    }
    heldout = {
        config.label: (found.collect(partial(_load_set, k, config, built_in)) or [])
        if config.set and f"eval.{k}.set" not in absent
        else loaded.get(f"eval.{k}.data", [])
        for k, config in enumerate(recipe.eval)
    }
    return loaded, heldout


def _without_eval_questions(
    recipe: Recipe,
    loaded: Mapping[str, list[Task]],
    heldout: Mapping[str, list[Task]],
    conversations: list[dict[str, Any]],
    unreadable: list[str],
) -> Tasks:
    """The tasks of the stages and demonstrations that are no questions of the evaluation."""
    held, notes, in_tasks = EvalQuestions(heldout), list[str](), set[Question]()
    left_out = list[str]()

    def kept(name: str, tasks: list[Task], held: EvalQuestions) -> list[Task]:
        rest, questions, note = _without_held_out(name, tasks, held)
        in_tasks.update(questions)
        notes.append(note)
        left_out.extend([note] if len(rest) < len(tasks) else [])
        return rest

    stages: list[list[Task]] = []
    for k, stage in enumerate(recipe.stages):
        tasks = loaded.get(f"stages.{k}.data")
        stages.append(stages[-1] if tasks is None else kept(f"stages.{k}.data", tasks, held))
        if not stages[-1]:
            raise ConfigError(
                f"stage {stage.name!r}: all {len(tasks or ())} tasks of its data are also in eval "
                f"({', '.join(heldout)}); give one of them another source, split or seed"
            )
    shown = loaded.get("sft.demonstration_tasks", [])
    if shown:
        known = {**heldout, **{f"stages.{k}": tasks for k, tasks in enumerate(stages)}}
        shown = kept("sft.demonstration_tasks", shown, EvalQuestions(known))
    texts = [m["content"] for row in conversations for m in row["messages"] if m["role"] == "user"]
    in_texts = {question for questions in held.of((text, "") for text in texts) for question in questions}
    learned = Learned(
        tasks=frozenset(in_tasks),
        texts=frozenset(in_texts),
        is_empty=not (texts or any(tasks for name, tasks in loaded.items() if not name.startswith("eval."))),
    )
    return Tasks(
        stages=stages,
        heldout=heldout,
        demonstrations=shown,
        learned=learned,
        unreadable=unreadable,
        notes=notes,
        left_out=left_out,
        conversations=conversations,
    )


def _without_held_out(
    name: str, tasks: list[Task], held: EvalQuestions
) -> tuple[list[Task], set[Question], str]:
    """The tasks that no set asks, the questions that the others are, and a line that counts them."""
    found = held.of_tasks(tasks)
    rest = [task for task, questions in zip(tasks, found, strict=True) if not questions]
    note = f"{name}: {len(tasks) - len(rest):,} of {len(tasks):,} tasks are questions of eval, and left out"
    return rest, {question for questions in found for question in questions}, note


def _conversations_of(recipe: Recipe) -> list[dict[str, Any]]:
    """The rows of sft.data; none of a cold start of demonstrations, or of a recipe without one."""
    sft = recipe.sft
    reads = sft.steps and sft.data != "demonstrations"
    return read_conversations(Path(sft.data), sft.tools) if reads else []


def loaded_tasks(
    recipe: Recipe,
    model: str | None = None,
    *,
    built_in: LoadSet,
    conversations: list[dict[str, Any]] | None = None,
) -> Tasks:
    """The same for a run; on standard error the answers that the judge cannot read."""
    with StatusLine(), working("loading the tasks"):
        tasks = load_all_tasks(recipe, model, built_in=built_in, conversations=conversations)
    for line in tasks.unreadable:
        print(line, file=sys.stderr)
    return tasks


def load_heldout(k: int, config: EvalConfig, built_in: LoadSet) -> list[Task]:
    """The tasks of the k-th set alone, unseen by any template. ConfigError where they cannot be had."""
    return (
        _load_set(k, config, built_in) if config.data is None else _load(f"eval.{k}.data", config.data, None)
    )


def _load_set(k: int, config: EvalConfig, built_in: LoadSet) -> list[Task]:
    try:
        return built_in(config)
    except ConfigError as error:
        raise ConfigError(f"eval.{k}: {error}") from None


def data_sources(recipe: Recipe) -> Iterator[tuple[str, DataConfig]]:
    """Every source of tasks that the recipe needs, under the name of its field."""
    for k, config in enumerate(recipe.eval):
        if config.data:
            yield f"eval.{k}.data", config.data
    for k, stage in enumerate(recipe.stages):
        if stage.data:
            yield f"stages.{k}.data", stage.data
    source = recipe.sft.demonstration_tasks
    if recipe.sft.steps and recipe.sft.data == "demonstrations" and source:
        yield "sft.demonstration_tasks", source


def _load(name: str, config: DataConfig, shown: PromptCheck | None) -> list[Task]:
    try:
        if hub_name(config) is not None:
            _check_hub_data(config)
        tasks = interleave_by_source(
            load_tasks(config, base=Path.cwd(), **({"check": shown.task} if shown else {}))
        )
    except Unreachable as error:
        raise ConfigError(
            f"{name}: {config.source!r} is not on this machine, and the hub cannot be asked ({error}); "
            f"put its files into ${DATA_DIR_VARIABLE}/{hub_name(config)}, or give local files"
        ) from None
    except ConfigError as error:
        is_models = str(error).startswith("model.")  # of the template that would show the rows
        raise error if is_models else ConfigError(f"{name}: {error}") from None
    return tasks[: config.limit] if config.limit else tasks


def _load_read(
    name: str, config: DataConfig, shown: PromptCheck | None, reward: RewardConfig, found: Findings
) -> list[Task]:
    """Load a source whose answers are read by the judge's grammar where that judge is the reward.

    Notes the answers that it cannot read; ConfigError for more of them than the source allows.
    """
    tasks = _load(name, config, shown)
    if reward.kind != "math" or reward.mode != "strict":
        return tasks
    unreadable = unreadable_truths(tasks)
    if not unreadable:
        return tasks
    examples = ", ".join(map(repr, list(dict.fromkeys(unreadable))[:3]))
    note = (
        f"{name}: {len(unreadable)} of {len(tasks)} answers cannot be read by the judge, which accepts only "
        f"their own letters: {examples}"
    )
    if len(unreadable) > config.max_unreadable * len(tasks):
        raise ConfigError(
            f"{note}; more than max_unreadable = {config.max_unreadable:g} of the source: set answer to "
            "a field that holds the bare answer, clean the data, or raise max_unreadable"
        )
    found.notes.append(note)
    return tasks


def hub_name(config: DataConfig) -> str | None:
    """Return OWNER/NAME of a source on the hub; None for a local one."""
    if not config.source.startswith("hub:"):
        return None
    name = config.source.removeprefix("hub:").partition(":")[0]
    override = os.environ.get(DATA_DIR_VARIABLE)
    return None if override and (Path(override) / name).is_dir() else name


def _check_hub_data(config: DataConfig) -> None:
    """ConfigError unless the hub or its cache has the data set; Unreachable where that cannot be known."""
    name = hub_name(config)
    if name is not None and not hub.is_cached(name, "datasets") and not hub.exists(name, "datasets"):
        raise ConfigError(
            f"data source {config.source!r}: the hub shows no such data set to this user; check the name "
            "(hub:OWNER/NAME:CONFIGURATION), or log in with `hf auth login`"
        )


def check_run(
    recipe: Recipe,
    run_dir: Path | None = None,
    *,
    resume: bool = False,
    built_in: LoadSet = nobody_loads,
) -> list[dict[str, Any]]:
    """Check all that can be checked before any work; return the conversations read for it. Raise ConfigError
    with all problems, before anything is written.

    Every rank calls it. Only rank 0 checks the run's folder and, after another problem, the data, because it
    loads the data next.
    """
    found = examine_recipe(recipe)
    found.collect(lambda: check_lora(recipe, Machines.parse(None).all_nodes))
    if run_dir is not None and os.environ.get("RANK", "0") == "0":
        examine_directory(recipe, run_dir, found, resume=resume)
        if found.problems:
            found.collect(partial(_load_here, recipe, found, built_in))
    found.refuse()
    return found.conversations


def _load_here(recipe: Recipe, found: Findings, built_in: LoadSet) -> Tasks:
    return load_all_tasks(
        recipe, has_template=found.has_template, built_in=built_in, conversations=found.conversations
    )


def check_dry_run(
    recipe: Recipe,
    run_dir: Path | None,
    *,
    resume: bool = False,
    elsewhere: bool = False,
    nodes: int | None = None,
    built_in: LoadSet = nobody_loads,
) -> Findings:
    """Check the requirements of a run, for `--dry-run`; without `run_dir`, those of a fixed policy.

    `elsewhere`: it will run on other machines. nodes: their number; None: torchrun's.
    """
    found = examine_recipe(recipe, learns=run_dir is not None, elsewhere=elsewhere, nodes=nodes, dry=True)
    if run_dir is not None:
        examine_directory(recipe, run_dir, found, resume=resume, elsewhere=elsewhere)
    absent: list[str] = []
    for name, config in data_sources(recipe):
        if hub_name(config) is None:
            continue
        absent.append(name)
        try:
            found.collect(partial(_check_hub_data, config))
            found.unknown.append(f"{name} = {config.source!r}: its rows, which are read when the run starts")
        except Unreachable as error:
            found.unknown.append(f"{name} = {config.source!r}: the hub cannot be asked ({error})")
    for k, chosen in enumerate(recipe.eval):
        if chosen.set and not chosen.path:
            absent.append(f"eval.{k}.set")
            found.unknown.append(
                f"eval.{k}.set = {chosen.set!r}: its rows, which are read when the run starts"
            )
    if not absent:
        tasks = found.collect(partial(_load_here, recipe, found, built_in))
        found.notes += [*tasks.unreadable, *tasks.notes] if tasks else []
        return found
    shown = PromptCheck(recipe) if found.has_template else None
    loaded, heldout = _load_sources(recipe, shown, found, built_in, absent)
    held = EvalQuestions(heldout)
    stages = [(name, tasks) for name, tasks in loaded.items() if name.startswith("stages.") and tasks]
    found.notes += [_without_held_out(name, tasks, held)[2] for name, tasks in stages]
    return found


def examine_recipe(
    recipe: Recipe,
    *,
    learns: bool = True,
    elsewhere: bool = False,
    nodes: int | None = None,
    dry: bool = False,
) -> Findings:
    """Model, tokenizer, template, conversations, engine and lengths. learns: it is to be trained."""
    found, sft = Findings(), recipe.sft
    max_positions = found.collect(lambda: _examine_model(recipe, found, dry=dry))
    rows = found.conversations = found.collect(partial(_conversations_of, recipe)) or []
    if rows and (found.has_template or (sft.template or recipe.model.template) != "model"):
        prompts = PromptCheck(recipe)
        found.notes += found.collect(lambda: prompts.conversations(rows)) or []
        if dry and not found.problems:  # a run reads the calls back when it encodes the rows
            found.collect(lambda: prompts.calls(rows))
    _examine_engine(recipe, found, learns=learns, elsewhere=elsewhere, nodes=nodes)
    if os.environ.get("RANK", "0") == "0":  # listeners run only on rank 0
        found.collect(lambda: check_callbacks(recipe.run.callbacks))
    found.collect(lambda: tool_box(recipe))
    if recipe.tool.flavour not in (*FLAVOURS, "auto"):
        found.problems.append(
            f"tool.flavour = {recipe.tool.flavour!r} is not one of {', '.join(FLAVOURS)}, auto"
        )
    for k, stage in enumerate(recipe.stages):
        if max_positions is not None and stage.max_response_tokens >= max_positions:
            found.problems.append(
                f"stages.{k}.max_response_tokens = {stage.max_response_tokens} leaves no room for a prompt "
                f"in the model's {max_positions} positions; lower it"
            )
    return found


def _examine_model(recipe: Recipe, found: Findings, *, dry: bool) -> int | None:
    """Return the model's number of positions, if declared. Problems of its parts are noted separately."""
    model = recipe.model
    if model.path == "scratch":
        if not recipe.sft.steps:
            found.problems.append(
                "model.path = 'scratch' needs sft.steps > 0: its tokenizer comes from the cold start"
            )
        found.collect(lambda: check_scratch(recipe))
        return MAX_POSITIONS
    if not _is_here(recipe, found, dry=dry):
        if model.template != "model":
            found.collect(lambda: check_scratch(recipe))  # the template alone, without the tokenizer
        found.has_template = False
        return None
    tokenizer = found.collect(lambda: load_tokenizer(model.path))
    if tokenizer is not None:
        chat = found.collect(lambda: chat_format(recipe, tokenizer))
        if chat is not None and recipe.sft.steps:
            found.collect(lambda: conversation_format(recipe, chat))
    else:
        found.has_template = False
        if model.template != "model":
            found.collect(lambda: check_scratch(recipe))
    return load_max_positions(model.path)


def _is_here(recipe: Recipe, found: Findings, *, dry: bool) -> bool:
    """Whether the model's files can be looked at now. A run fetches them from the hub; a dry run does not."""
    path = recipe.model.path
    before = len(found.problems)
    found.collect(lambda: check_model_path(path) if dry else check_can_load(path))
    if len(found.problems) > before:
        return False
    backend = found.collect(lambda: backend_of(recipe))
    is_read = backend is None or backend.reads_weights
    if is_read and Path(path).is_dir():
        found.collect(lambda: checked_folder(path))
        if len(found.problems) > before:
            return False
    if not dry or is_here(path):
        return True
    try:
        check_on_hub(path)
    except Unreachable as error:
        found.unknown.append(f"{nowhere(path)}, and the hub cannot be asked ({error})")
    except ConfigError as error:
        found.problems.append(str(error))
    else:
        found.unknown.append(
            f"{nowhere(path)}; the hub has it, tokenizer and template are seen when the run starts"
        )
    return False


def examine_directory(
    recipe: Recipe, run_dir: Path, found: Findings, *, resume: bool, elsewhere: bool = False
) -> None:
    """Whether a run could be written there."""
    found.collect(lambda: check_claim(run_dir, resume=resume))
    if elsewhere:
        found.unknown.append(f"output directory {str(run_dir)!r}: its free space on the other machines")
    else:
        found.collect(lambda: check_disk(recipe, run_dir))


def check_lora(recipe: Recipe, nodes: int) -> None:
    """ConfigError where adapters are to learn and cannot, on so many nodes."""
    rank = recipe.lora.rank
    if rank and (missing := missing_extra_message(f"lora.rank = {rank}", "lora")):
        raise ConfigError(missing)
    if rank and nodes > 1 and not backend_of(recipe).has_serving_nodes:
        raise ConfigError(
            f"lora.rank = {rank}: merged weights reach engines of rank 0's node, and there are {nodes}; "
            "start it on one, or set engine.kind = 'sglang', whose servers read them from files"
        )


def check_disk(recipe: Recipe, run_dir: Path) -> None:
    """ConfigError where the checkpoints that lie there at one time have no room."""
    size = measure(recipe.model, recipe.lora)
    if isinstance(size, str):
        return  # a missing model is reported elsewhere
    there = next(path for path in (run_dir, *run_dir.absolute().parents) if path.is_dir())
    num = max(1, peak_checkpoints(recipe) - len(complete_checkpoints(run_dir)))
    each = checkpoint_bytes(size.parameters, size.adapters, size.dtype_bytes)
    total, _, free = shutil.disk_usage(there)
    if not total:  # as of /proc
        raise ConfigError(
            f"output directory {str(run_dir)!r} cannot be written: the file system of {str(there)!r} stores "
            "no files; choose another --output-dir"
        )
    if free < num * each:
        raise ConfigError(
            f"output directory {str(run_dir)!r}: {format_bytes(free)} are free, and {num} checkpoints of "
            f"{format_bytes(each)} do not fit; free some space, lower checkpoint.keep_last = "
            f"{recipe.checkpoint.keep_last}, or choose another --output-dir"
        )


def peak_checkpoints(recipe: Recipe) -> int:
    """The most checkpoints that exist at one time: those that are kept, and the one that is written."""
    config, first = recipe.checkpoint, 0
    steps = [0]
    for stage in recipe.stages:
        last = first + stage.steps
        steps += [k for k in range(first + 1, last) if config.every and k % config.every == 0]
        steps += [last] if stage.steps else []
        first = last
    kept = [k for k in steps if k == 0 or (config.keep_every and k % config.keep_every == 0)]
    return min(len(steps), len({*kept, *steps[-config.keep_last - 1 :]}))


def check_engine(recipe: Recipe, *, learns: bool = False, nodes: int | None = None) -> None:
    """Check the requirements of engine, tools and reward on this node. Raise ConfigError; nothing is started.

    Args:
        recipe: the recipe to run.
        learns: True if the policy is trained.
        nodes: number of nodes; None: torchrun's.
    """
    found = Findings()
    _examine_engine(recipe, found, learns=learns, nodes=nodes)
    found.refuse()


def _examine_engine(
    recipe: Recipe, found: Findings, *, learns: bool, elsewhere: bool = False, nodes: int | None = None
) -> None:
    found.collect(lambda: check_reward(recipe.reward))
    found.collect(lambda: check_advantage(recipe.rl.advantage))
    found.unknown += (
        found.collect(
            lambda: check_backend(
                recipe, learns=learns, nodes=nodes or Machines.parse(None).all_nodes, elsewhere=elsewhere
            )
        )
        or []
    )
    if recipe.tool.sandbox == "redis":
        found.collect(lambda: check_redis(workers_url()))


def check_redis(url: str) -> None:
    """ConfigError unless a Redis answers there; the URL is not shown, for it may hold a password."""
    if missing := missing_extra_message("tool.sandbox = 'redis'", "fabric"):
        raise ConfigError(missing)
    import redis

    try:
        with redis.Redis.from_url(url, socket_connect_timeout=REDIS_S, socket_timeout=REDIS_S) as client:
            client.ping()
    except (redis.RedisError, ValueError) as error:
        raise ConfigError(
            f"tool.sandbox = 'redis': the Redis of {REDIS_VARIABLE} does not answer "
            f"({type(error).__name__}); start it or correct the URL, or set tool.sandbox = 'local'"
        ) from None
