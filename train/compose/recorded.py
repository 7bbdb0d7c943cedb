"""A run that learns from the records of another run: its model alone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from rocstar.train.compose.model import load_team
from rocstar.train.compose.setup import BuiltRun, Setup
from rocstar.train.evaluation import during_training
from rocstar.train.groups.from_rollouts import RecordedGroups, Records, VersionCounter
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.reading.view.report import write_eval_report
from rocstar.train.tasks.chat_format import chat_format


@contextlib.asynccontextmanager
async def open_recorded(setup: Setup, records: Records) -> AsyncIterator[BuiltRun]:
    """Build a run on the groups of `records`."""
    recipe, path = setup.recipe, str(setup.saved or setup.recipe.model.path)
    setup.set_threads(setup.world.threads(recipe.run.threads))
    tokenizer = load_tokenizer(path)
    team = load_team(setup, path)
    refill = ", rl.refill draws nothing" if recipe.rl.refill else ""
    setup.listeners.note(f"learning from {records}: nothing is rolled out or evaluated{refill}")
    yield BuiltRun(
        run=setup.run(
            team,
            VersionCounter(),
            chat_format(recipe, tokenizer),
            evaluation=during_training,
            write_eval_page=write_eval_report,
        ),
        tokenizer=tokenizer,
        tasks=[[] for _ in recipe.stages],
        open_source=lambda stage, tasks, state: contextlib.nullcontext(RecordedGroups(records)),
    )
