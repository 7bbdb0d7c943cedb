"""A run that rolls out: sandbox, model, cold start, engine and agent, in this order."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rocstar.engine.types import Task
from rocstar.train.compose.model import FirstModel, conversations, first_model, make_team, tune
from rocstar.train.compose.setup import Setup
from rocstar.train.groups.live_source import live_source
from rocstar.train.groups.source import Source
from rocstar.train.learner import checkpoint
from rocstar.train.plan.preflight import Tasks
from rocstar.train.recipe.rl_config import StageConfig
from rocstar.train.run import Live, Run
from rocstar.train.serving.agent import open_agent, open_sandbox
from rocstar.train.serving.backend import InitialPolicy, Learning, backend_of
from rocstar.train.serving.nodes import open_nodes
from rocstar.train.tasks.chat_format import chat_format


@contextlib.asynccontextmanager
async def open_live(setup: Setup, tasks: Tasks) -> AsyncIterator[Run]:
    """Build a run on `tasks`; its cold start is over when the block begins."""
    recipe = setup.recipe
    token = secrets.token_hex(32) if setup.world.has_nodes else None  # of the services of other nodes
    for note in tasks.left_out:
        setup.listeners.note(note)
    async with open_sandbox(recipe) as sandbox:
        model, tokenizer = await first_model(setup, tasks, sandbox)
        chat = chat_format(recipe, tokenizer)
        team = make_team(setup, model, tokenizer, token)
        is_tuned = setup.saved is None and recipe.model.path != "scratch" and recipe.sft.steps > 0
        if is_tuned:
            rows = conversations(setup, tasks, sandbox, chat.form)
            await tune(setup, team, chat, await rows, tokenizer)
        tasks.conversations.clear()  # not needed any more, and possibly gigabytes
        learning = Learning(
            origin=_initial_policy(setup, model, tokenizer, is_tuned=is_tuned),
            team=team,
            thread=setup.thread,
            run_dir=setup.run_dir,
            note=setup.listeners.note,
        )
        async with (
            backend_of(recipe).open_learning(recipe, learning) as opened,
            open_nodes(recipe, opened.others, token, opened.engine.load, setup.listeners.note) as nodes,
            open_agent(recipe, opened.engine, chat, sandbox, log=setup.run_dir / "logs" / "agent.log") as agent,
        ):
            if is_tuned and opened.publisher.version == 0:  # this engine has the model before the cold start
                await opened.publisher.publish(1)
            team.writer.use_tokenizer(tokenizer)
            live = Live(agent=agent, heldout=tasks.heldout, learned=tasks.learned, measure=opened.measure, nodes=nodes)

            def open_source(
                stage: StageConfig, tasks: Sequence[Task], state: dict[str, Any] | None
            ) -> AbstractAsyncContextManager[Source]:
                opened.begin(stage.name)
                return live_source(
                    recipe,
                    agent,
                    opened.engine,
                    stage,
                    tasks,
                    state,
                    next_step=run.step + 1,
                    budget=run.budget,
                    nodes=nodes,
                    journal=run.journal,
                )

            run = setup.run(team, opened.publisher, chat, tasks.stages, open_source, live)
            yield run


def _initial_policy(
    setup: Setup, model: FirstModel, tokenizer: PreTrainedTokenizerBase, *, is_tuned: bool
) -> InitialPolicy:
    """Return the policy with which the engine begins."""
    path, saved = setup.recipe.model.path, setup.saved
    is_given = path != "scratch" and Path(path).is_dir()
    return InitialPolicy(
        made=model.load,
        tokenizer=tokenizer,
        folder=Path(path).absolute() if is_given and saved is None and not is_tuned else None,
        saved=saved,
        version=checkpoint.load_progress(saved)["version"] if saved else int(is_tuned),
    )
