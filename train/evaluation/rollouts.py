"""`rocstar rollout`: trajectories of a model, without a learner.

    one step   -> --out FILE.jsonl
    many steps -> --out FOLDER/ config.toml, trajectories/step_N.*      (read by `train --from-rollouts`)

    --teacher  -> --out FILE.jsonl   conversations of another model, read by `sft.data`

The model is constant: its version is 0 in every record. Step N has the tasks and the noise of step N of a run
with this model, whichever steps came before.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp

from rocstar.engine.gateway.teacher import NoEngine, Teacher, TeacherLoop, TeacherSession
from rocstar.engine.nodes.grants import Window
from rocstar.engine.progress.status import StatusLine
from rocstar.engine.record.files import record_files
from rocstar.engine.record.json_record import to_record
from rocstar.engine.record.reading import write_records
from rocstar.engine.types import Failed, Group, Scored, Task
from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
from rocstar.train.evaluation.evaluate_sets import EvaluationContext, run_attempts, run_share
from rocstar.train.evaluation.saved_model import open_engine_and_agent, run_to_end, with_model
from rocstar.train.groups.advantages import path_weights_of
from rocstar.train.groups.journal import Journal, origin_of
from rocstar.train.groups.live_source import wave_of
from rocstar.train.groups.rollout_metrics import rollout_metrics
from rocstar.train.groups.selection import Selection, select
from rocstar.train.groups.source import LiveGroups, Roller
from rocstar.train.groups.task_cursor import TaskCursor
from rocstar.train.learner.cold_start import build_tokenizer
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.plan.preflight import load_all_tasks
from rocstar.train.plan.prompts import dated
from rocstar.train.recipe.config import Recipe, SftConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import to_toml
from rocstar.train.recipe.model_config import QUESTION
from rocstar.train.recipe.rl_config import StageConfig
from rocstar.train.record.console import Console
from rocstar.train.record.manifest import ConsoleLog, recorded
from rocstar.train.record.run_directory import (
    METRICS,
    TRAJECTORIES,
    check_file,
    claim,
    discard_if_unused,
    write_config,
    write_or_rescue,
)
from rocstar.train.record.time_budget import TimeBudget
from rocstar.train.serving.agent import make_agent, open_harness, open_sandbox
from rocstar.train.serving.openai import KEY_VARIABLE
from rocstar.train.tasks.chat_format import chat_format
from rocstar.train.tasks.verify import num_answers


def roll_out_file(
    recipe: Recipe, model: str | None, *, out: Path, limit: int, force: bool = False
) -> dict[str, float]:
    """Roll out groups on the first `limit` tasks, write records and return their metrics.

    Raises:
        ConfigError: `out` exists and `force` is false, or it cannot be written. If writing fails at the end,
            the message names the place of the records.
    """
    check_file(out, force=force, instead=", or --steps for a folder of steps")
    out, recipe = out.resolve(), dated(with_model(recipe, model))
    stage, tasks = first_stage(recipe)
    seed, tasks = recipe.run.seed, tasks[:limit]

    async def work() -> dict[str, float]:
        async with open_engine_and_agent(
            recipe, max_response_tokens=stage.max_response_tokens, max_turns=stage.max_turns
        ) as (_, agent):
            size = recipe.rl.rollouts_per_task
            context = EvaluationContext(recipe=recipe, agent=agent, nodes=None)
            groups = await run_share(context, tasks, size, seed, 1, "rollouts")
            selection = select(groups, recipe.rl, seed=seed, limit=stage.max_response_tokens)
            write_or_rescue(out.parent, lambda folder: _write(folder / out.name, selection, stage, agent.chat.decode))
            return rollout_metrics(selection)

    with StatusLine():
        return run_to_end(work())


def roll_out_steps(recipe: Recipe, model: str | None, *, out: Path, steps: int, resume: bool) -> dict[str, float]:
    """Roll out the batches of `steps` steps of the first stage into a folder. Return sums over them.

    Raises:
        ConfigError: the folder has records and `resume` is false, or they belong to another recipe or a run.
    """
    recipe = dated(with_model(recipe, model), former=out)
    stage, tasks = first_stage(recipe)
    with claim(out, resume=resume, mark=TRAJECTORIES):
        try:
            if (out / METRICS).exists():
                raise ConfigError(f"{str(out)!r} holds a training run. Pass another --out.")
            # Writes the recipe, or checks that it is the one that the records were started with.
            write_config(out, to_toml(recipe), is_started=any((out / TRAJECTORIES).glob("step_*")))
            (out / TRAJECTORIES).mkdir(exist_ok=True)
            with ConsoleLog(out) as log, recorded(out, recipe, world_size=1):
                return run_to_end(_all_steps(recipe, stage, tasks, out, steps, log))
        finally:
            discard_if_unused(out)


def first_stage(recipe: Recipe) -> tuple[StageConfig, list[Task]]:
    """Return the first stage, whose limits apply, and its tasks. ConfigError for a recipe without stages."""
    if not recipe.stages:
        raise ConfigError("the recipe has no [[stages]], so rollouts have no limits")
    if not recipe.rl.uses_rewards:
        raise ConfigError("rl.advantage = 'distill': no teacher is asked here; set --rl.advantage=grpo")
    alone = recipe.model_copy(update={"sft": SftConfig(steps=0)})  # its data are not needed here
    return recipe.stages[0], load_all_tasks(alone, built_in=load_tasks_of).stages[0]


def record_teacher(
    recipe: Recipe, model: str | None, *, url: str, name: str, out: Path, limit: int, only_correct: bool, force: bool
) -> dict[str, int]:
    """Write what another model says on the first `limit` tasks with the recipe's tools, and return how many attempts
    there were. The key of its endpoint is in the environment's ROCSTAR_OPENAI_KEY.

    ConfigError if `out` exists and `force` is false, or every attempt failed.
    """
    if url.partition("://")[0] not in ("http", "https"):
        raise ConfigError(f"--teacher {url!r} is no address; it begins with http:// or https:// and ends with /v1")
    check_file(out, force=force)
    out, recipe = out.resolve(), dated(recipe, model)
    stage, tasks = first_stage(recipe)
    tasks, path = tasks[:limit], model or recipe.model.path
    asked = {t.id: replace(t, question=recipe.model.task_prompt.replace(QUESTION, t.question)).messages for t in tasks}
    rows = [{"messages": messages} for messages in asked.values()]
    tokenizer = build_tokenizer(recipe, rows) if path == "scratch" else load_tokenizer(path)
    groups: list[Group] = []

    async def keep(group: Group) -> None:
        groups.append(group)

    async def work() -> dict[str, TeacherSession]:
        async with open_sandbox(recipe) as sandbox, aiohttp.ClientSession() as http:
            teacher = Teacher(http=http, url=url, model=name, api_key=os.environ.get(KEY_VARIABLE, ""))
            limits = {"max_response_tokens": stage.max_response_tokens, "max_turns": stage.max_turns}
            agent = make_agent(recipe, NoEngine(), chat_format(recipe, tokenizer), sandbox, **limits)
            sessions = partial(TeacherSession, teacher)
            async with open_harness(recipe.agent, sandbox, log=None, max_context=None, open_session=sessions) as own:
                harness = own or TeacherLoop(teacher, lambda task: asked[task.id])
                roller = Roller(agent=replace(agent, harness=harness))
                window = Window(size=1, trajectories=lambda: recipe.engine.max_running)
                await run_attempts(
                    roller, tasks, 1, recipe.run.seed, 1, in_flight=window, on_group=keep, what="teacher"
                )
            return teacher.sessions

    with StatusLine():
        sessions = run_to_end(work())
    ended = [trajectory for group in groups for trajectory in group.trajectories]
    failed = [t.outcome.detail for t in ended if isinstance(t.outcome, Failed)]
    if len(failed) == len(ended):
        raise ConfigError(f"every attempt failed; the last one: {failed[-1]}")
    correct = [t for t in ended if isinstance(t.outcome, Scored) and t.outcome.is_correct]
    kept = correct if only_correct else [t for t in ended if isinstance(t.outcome, Scored)]
    lines = [json.dumps(row) + "\n" for t in kept for row in sessions[str(t.key)].conversations()]
    write_or_rescue(out.parent, lambda folder: (folder / out.name).write_text("".join(lines), encoding="utf-8"))
    return {"attempts": len(ended), "correct": len(correct), "failed": len(failed), "conversations": len(lines)}


async def _all_steps(
    recipe: Recipe, stage: StageConfig, tasks: list[Task], out: Path, steps: int, log: ConsoleLog
) -> dict[str, float]:
    total, rewards, weights = Counter[str](), 0.0, 0.0
    cursor, budget = TaskCursor(tasks, seed=recipe.run.seed, rl=recipe.rl), TimeBudget()
    done = record_files(out / TRAJECTORIES)
    with Console(steps, [stage.name], log=log) as console:
        async with (
            open_engine_and_agent(
                recipe, max_response_tokens=stage.max_response_tokens, max_turns=stage.max_turns
            ) as (engine, agent),
            Journal(out, origin_of(recipe), decode=agent.chat.decode, goes_on=True) as journal,
        ):
            source = LiveGroups(
                agent=agent,
                engine=engine,
                cursor=cursor,
                rl=recipe.rl,
                seed=recipe.run.seed,
                budget=budget,
                journal=journal,
                wave=wave_of(recipe, None),
            )
            for step in range(1, steps + 1):
                if step in done:
                    if recipe.rl.refill or cursor.observes:  # which tasks come depends on its rewards
                        await source.take(step)
                    else:
                        cursor.take(recipe.rl.tasks_per_step)
                    continue
                groups = (await source.take(step)).groups
                limit = stage.max_response_tokens
                selection = select(groups, recipe.rl, seed=recipe.run.seed, limit=limit)
                await journal.seal(step, selection.verdicts, stage=stage.name)
                metrics = rollout_metrics(selection)
                console.on_step({"step": step, "stage": stage.name} | metrics | budget.finish())
                total.update({k: int(v) for k, v in metrics.items() if k.startswith("ledger/")})
                scored = [t for g in groups for t in g.scored]
                weight = sum(path_weights_of(scored))
                rewards, weights = rewards + weight * metrics.get("reward/mean", 0.0), weights + weight
                total["steps"], total["scored"] = total["steps"] + 1, total["scored"] + len(scored)
    return dict(total) | {"reward/mean": rewards / max(1.0, weights)}


def _write(path: Path, selection: Selection, stage: StageConfig, decode: Callable[[Sequence[int]], str]) -> None:
    """Write the records of a step with the decisions of this recipe's RoC."""
    write_records(
        path,
        (to_record(t, v, stage=stage.name, num_answers=num_answers(t), decode=decode) for t, v in selection.verdicts),
    )
