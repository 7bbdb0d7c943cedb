"""The checks of a run, before any work and before a file is written: one list for `--dry-run` and the start.

A check ends in one of three verdicts: ready, missing (exit code 2), or could not be checked.
"""

import os
import re
import shlex
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
from rocstar.train.groups.fork_rule import check_fork
from rocstar.train.groups.from_rollouts import Records
from rocstar.train.learner import hub, model_io
from rocstar.train.learner.checkpoint import checkpoint_bytes
from rocstar.train.learner.cold_start import encode_rows, read_conversations
from rocstar.train.learner.hub import Unreachable
from rocstar.train.learner.own_loss import check_loss
from rocstar.train.learner.scratch import MAX_POSITIONS
from rocstar.train.plan.plan import Machines
from rocstar.train.plan.prompts import PromptCheck
from rocstar.train.recipe import own_code
from rocstar.train.recipe.config import EvalConfig, Recipe
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.record.callbacks import Callback
from rocstar.train.record.learned_questions import Learned, Question
from rocstar.train.record.run_directory import check_claim, complete_checkpoints
from rocstar.train.record.trackers import check_tracker
from rocstar.train.serving.agent import REDIS_VARIABLE, check_agent, workers_url
from rocstar.train.serving.backend import backend_of, check_backend
from rocstar.train.tasks.chat_format import chat_format, check_scratch, conversation_format
from rocstar.train.tasks.compare import unreadable_truths
from rocstar.train.tasks.data import interleave_by_source, load_tasks, mixed_by_weight
from rocstar.train.tasks.environments.kinds import environments_of
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
    """True if the chat template can be read here."""
    tasks: Tasks | None = None
    """Those that are on this machine, on rank 0; None of a run that learns from records."""
    records: Records | None = None
    """The records of a run that learns from records, on rank 0."""
    callbacks: list[Callback] = field(default_factory=list)
    """Those of run.callbacks, on rank 0."""

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

    @property
    def verdict(self) -> str:
        """The verdict in one line."""
        if self.problems:
            return f"missing: {len(self.problems)}"
        if not self.unknown:
            return "ready: nothing is missing"
        names = ", ".join(re.split(r" = |: | '", line)[0] for line in self.unknown)
        return f"ready: nothing is missing; {len(self.unknown)} could not be checked: {names}"

    def refuse(self) -> None:
        """Raise the noted problems as one error."""
        if self.problems:
            raise ConfigErrors(self.problems)


def load_all_tasks(recipe: Recipe, model: str | None = None, *, built_in: LoadSet = nobody_loads) -> Tasks:
    """Load every data source; no RL task is a held-out one. ConfigErrors for all that cannot be used.

    Standard error gets the answers that the judge cannot read. `model`: the one that reads the prompts, if it
    is not the recipe's.
    """
    found = Findings()
    with StatusLine(), working("loading the tasks"):
        rows = found.collect(partial(_conversations_of, recipe)) or []
        tasks = _load_tasks(recipe, PromptCheck(recipe, model), found, built_in, rows)
    found.refuse()
    assert tasks is not None
    for line in tasks.unreadable:
        print(line, file=sys.stderr)
    return tasks


def _load_tasks(
    recipe: Recipe,
    shown: PromptCheck | None,
    found: Findings,
    built_in: LoadSet,
    rows: list[dict[str, Any]],
    absent: Collection[str] = (),
) -> Tasks | None:
    """Load the tasks of the stages, demonstrations and sets; note the errors, and return None after one.

    The fields in `absent` are not on this machine, and have no tasks. `rows`: the conversations of sft.data.
    """
    before, unreadable = len(found.problems), list[str]()
    loaded = {
        name: found.collect(partial(_load_read, name, config, shown, recipe, unreadable)) or []
        for name, config in data_sources(recipe)
        if name not in absent
    }
    heldout = {
        config.label: (found.collect(partial(load_heldout, k, config, built_in)) or [])
        if config.set and f"eval.{k}.set" not in absent
        else loaded.get(f"eval.{k}.data", [])
        for k, config in enumerate(recipe.eval)
    }
    if len(found.problems) > before:
        found.notes += unreadable
        return None
    return found.collect(lambda: _without_eval_questions(recipe, loaded, heldout, rows, unreadable))


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
        if not tasks:  # its source is not on this machine
            return tasks
        found = held.of_tasks(tasks)
        rest = [task for task, questions in zip(tasks, found, strict=True) if not questions]
        in_tasks.update(question for questions in found for question in questions)
        cut = len(tasks) - len(rest)
        notes.append(f"{name}: {cut:,} of {len(tasks):,} tasks are questions of eval, and left out")
        left_out.extend(notes[-1:] if cut else [])
        return rest

    stages: list[list[Task]] = []
    for k, stage in enumerate(recipe.stages):
        name, tasks = f"stages.{k}.data", loaded.get(f"stages.{k}.data", [])
        if not k and stage.data is None:
            name = "environments"
            tasks = mixed_by_weight(
                [(loaded[f"environments.{j}.data"], one.weight) for j, one in enumerate(recipe.environments)]
            )
        stages.append(kept(name, tasks, held) if stage.data or not k else stages[-1])
        if tasks and not stages[-1]:
            raise ConfigError(
                f"stage {stage.name!r}: all {len(tasks)} tasks of its data are also in eval "
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


def _conversations_of(recipe: Recipe) -> list[dict[str, Any]]:
    """The rows of sft.data; none of a cold start of demonstrations, or of a recipe without one."""
    sft = recipe.sft
    reads = sft.steps and sft.data != "demonstrations"
    return read_conversations(Path(sft.data), sft.tools) if reads else []


def load_heldout(k: int, config: EvalConfig, built_in: LoadSet) -> list[Task]:
    """Return the tasks of the k-th set alone, unseen by any template. ConfigError if they cannot be read."""
    if config.data is not None:
        return _load(f"eval.{k}.data", config.data, None)
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
    for k, environment in enumerate(recipe.environments):
        if any(stage.data is None for stage in recipe.stages[:1]):
            yield f"environments.{k}.data", environment.tasks
    source = recipe.sft.demonstration_tasks
    if recipe.sft.steps and recipe.sft.data == "demonstrations" and source:
        yield "sft.demonstration_tasks", source


def _load(name: str, config: DataConfig, shown: PromptCheck | None) -> list[Task]:
    try:
        _check_hub_data(config)
        tasks = interleave_by_source(load_tasks(config, base=Path.cwd(), **({"check": shown.task} if shown else {})))
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
    name: str, config: DataConfig, shown: PromptCheck | None, recipe: Recipe, notes: list[str]
) -> list[Task]:
    """Load a source whose answers are read by the judge's grammar where that judge is the reward.

    Notes the answers that it cannot read; ConfigError for more of them than the source allows.
    """
    tasks = _load(name, config, shown)
    if not recipe.reads_box(config.environment):
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
    notes.append(note)
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


def check_start(
    recipe: Recipe,
    run_dir: Path | None,
    *,
    resume: bool = False,
    rollouts: Path | None = None,
    dry: bool = False,
    elsewhere: bool = False,
    nodes: int | None = None,
    built_in: LoadSet = nobody_loads,
) -> Findings:
    """Run every check of a run, and return the findings and the loaded data. Nothing is written.

    Every rank calls it. Rank 0 alone checks trackers, callbacks, data and the run's folder.

    Args:
        recipe: the recipe to run.
        run_dir: the run's folder; None: a fixed policy, which does not learn.
        resume: the run in the folder goes on.
        rollouts: the records that it learns from; nothing is rolled out.
        dry: nothing is downloaded; facts that only a download shows are in `unknown`.
        elsewhere: the run will be on other machines than this.
        nodes: number of nodes; None: torchrun's.
        built_in: reads a built-in set.
    """
    found = Findings()
    nodes = nodes or Machines.parse(None).all_nodes
    if rollouts is None:
        _examine_policy(recipe, found, learns=run_dir is not None, elsewhere=elsewhere, nodes=nodes, dry=dry)
    found.collect(lambda: check_lora(recipe, nodes))
    if os.environ.get("RANK", "0") != "0":
        return found
    for name in recipe.run.trackers:
        found.unknown += found.collect(partial(check_tracker, name)) or []
    for k, config in enumerate(recipe.run.callbacks):
        place = f"run.callbacks.{k}.kind"
        made = found.collect(partial(own_code.make, config.kind, config.args, Callback, field=place))
        found.callbacks += [made] if made else []
    if run_dir is not None:
        found.collect(lambda: check_claim(run_dir, resume=resume))
        if elsewhere:
            found.unknown.append(f"output directory {str(run_dir)!r}: its free space on the other machines")
        else:
            found.collect(lambda: check_disk(recipe, run_dir))
    if rollouts is None:
        _examine_data(recipe, found, built_in, dry=dry)
    elif run_dir is not None:
        found.records = found.collect(lambda: Records.open(rollouts, recipe, run_dir))
    return found


def _examine_data(recipe: Recipe, found: Findings, built_in: LoadSet, *, dry: bool) -> None:
    """Read the conversations and the tasks; those of the hub are not downloaded by a dry run."""
    rows = found.collect(partial(_conversations_of, recipe)) or []
    if rows and (found.has_template or (recipe.sft.template or recipe.model.template) != "model"):
        prompts = PromptCheck(recipe)
        found.notes += found.collect(lambda: prompts.conversations(rows)) or []
        if dry and found.has_template and not found.problems:  # a run encodes them in its cold start
            found.collect(lambda: encode_rows(recipe, rows))
    # A start that is refused anyway downloads no set: without a network each one takes half a minute.
    absent = _examine_downloads(recipe, found) if dry else [*_named_sets(recipe)] if found.problems else []
    shown = PromptCheck(recipe) if found.has_template else None
    tasks = found.tasks = _load_tasks(recipe, shown, found, built_in, rows, absent)
    found.notes += [*tasks.unreadable, *tasks.notes] if tasks else []


def _examine_downloads(recipe: Recipe, found: Findings) -> list[str]:
    """Return the fields whose rows a start downloads; note those that the hub does not have."""
    absent = [(name, config) for name, config in data_sources(recipe) if hub_name(config) is not None]
    for name, config in absent:
        try:
            found.collect(partial(_check_hub_data, config))
            found.unknown.append(f"{name} = {config.source!r}: its rows, which are read when the run starts")
        except Unreachable as error:
            found.unknown.append(f"{name} = {config.source!r}: the hub cannot be asked ({error})")
    sets = _named_sets(recipe)
    for name, value in sets.items():
        found.unknown.append(f"{name} = {value!r}: its rows, which are read when the run starts")
    return [*(name for name, _ in absent), *sets]


def _named_sets(recipe: Recipe) -> dict[str, str]:
    """Return the built-in sets by field, without those read from a file."""
    return {f"eval.{k}.set": one.set for k, one in enumerate(recipe.eval) if one.set and not one.path}


def _examine_policy(recipe: Recipe, found: Findings, *, learns: bool, elsewhere: bool, nodes: int, dry: bool) -> None:
    """Check model, tokenizer, template, engine, tools and lengths."""
    max_positions = found.collect(lambda: _examine_model(recipe, found, dry=dry))
    examine_engine(recipe, found, learns=learns, elsewhere=elsewhere, nodes=nodes)
    found.collect(lambda: tool_box(recipe))
    found.collect(lambda: environments_of(recipe))
    if recipe.tool.flavour not in (*FLAVOURS, "auto"):
        found.problems.append(f"tool.flavour = {recipe.tool.flavour!r} is not one of {', '.join(FLAVOURS)}, auto")
    for k, stage in enumerate(recipe.stages):
        if max_positions is not None and stage.max_response_tokens >= max_positions:
            found.problems.append(
                f"stages.{k}.max_response_tokens = {stage.max_response_tokens} leaves no room for a prompt "
                f"in the model's {max_positions} positions; lower it"
            )


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
    is_here = _is_here(recipe, found, dry=dry)
    tokenizer = found.collect(lambda: model_io.load_tokenizer(model.path)) if is_here else None
    if tokenizer is None:
        found.has_template = False
        if model.template != "model":
            found.collect(lambda: check_scratch(recipe))  # the template alone, without the tokenizer
        return None
    chat = found.collect(lambda: chat_format(recipe, tokenizer))
    if chat is not None and recipe.sft.steps:
        found.collect(lambda: conversation_format(recipe, chat))
    return model_io.load_max_positions(model.path)


def _is_here(recipe: Recipe, found: Findings, *, dry: bool) -> bool:
    """Return True if the model is on this machine, or a start, which is not `dry`, downloads it."""
    path = recipe.model.path

    def look() -> bool:
        (model_io.check_model_path if dry else model_io.check_can_load)(path)
        if Path(path).is_dir() and backend_of(recipe).reads_weights:
            model_io.checked_folder(path)
        if not dry or model_io.is_here(path):
            return True
        model_io.check_on_hub(path)
        found.unknown.append(f"{model_io.nowhere(path)}; the hub has it: tokenizer and template are read at the start")
        return False

    try:
        return found.collect(look) or False
    except Unreachable as error:
        found.unknown.append(f"{model_io.nowhere(path)}, and the hub cannot be asked ({error})")
        return False


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
    size = model_io.measure(recipe.model, recipe.lora)
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


def examine_engine(
    recipe: Recipe, found: Findings, *, learns: bool, elsewhere: bool = False, nodes: int | None = None
) -> None:
    """Check reward, advantage, loss, engine and Redis on this node; `nodes` None: torchrun's."""
    found.collect(lambda: check_reward(recipe.reward))
    found.collect(lambda: check_advantage(recipe.rl.advantage))
    found.collect(lambda: check_loss(recipe.rl.loss))
    on_nodes = nodes or Machines.parse(None).all_nodes
    found.collect(lambda: check_fork(recipe.rl, on_nodes))
    if elsewhere and recipe.agent.kind == "program":
        found.unknown.append(f"agent.command = {shlex.join(recipe.agent.command)!r}: a program of the other machines")
    else:
        found.collect(lambda: check_agent(recipe.agent))
    checked = found.collect(lambda: check_backend(recipe, learns=learns, nodes=on_nodes, elsewhere=elsewhere))
    found.unknown += checked or []
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
