"""The composition root: builds a run and hands it to the loop.

    train ─┬─ rank 0: compose/start.py ─┬─ open_live: sandbox, model, engine, agent ─┬─> run_stages
           │                          └─ of records: model alone ────────────────────────┘
           └─ other ranks: follow (serving/nodes.py), driven by rank 0's LearnerTeam

From here to the loss: `train_step` (loop.py), `Learner.policy_step` (learner/learner.py), `policy_loss`
(algorithm/loss.py). The checks of a run, and the life of the other ranks, are imported when they begin.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path

import uvloop

from rocstar.engine.progress.progress import working
from rocstar.train.compose.setup import Begun, TrainOrder, open_setup
from rocstar.train.learner import checkpoint
from rocstar.train.learner.host_memory import give_freed_memory_back, keep_freed_memory
from rocstar.train.learner.world import World, deterministic_torch, local_device
from rocstar.train.loop import run_stages, tell_saved
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.record.callbacks import Callback
from rocstar.train.record.manifest import STOPPED
from rocstar.train.record.training_run import TrainingRun


def train(
    recipe: Recipe, run_dir: Path, *, resume: bool, rollouts: Path | None = None, callbacks: Sequence[Callback] = ()
) -> TrainingRun:
    """Run a whole recipe, or learn its stages from the records at `rollouts`. Every rank calls it.

    `callbacks` listen beside those that the recipe names; of several ranks, rank 0's. A resumed run that is
    complete says so and is left as it is.
    """
    order = TrainOrder(recipe=recipe, run_dir=run_dir, resume=resume, rollouts=rollouts, callbacks=callbacks)
    with work_of_rank_0(order) as work:
        if work is not None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(work)
    return TrainingRun(run_dir)


@contextlib.contextmanager
def work_of_rank_0(order: TrainOrder) -> Iterator[Coroutine[None, None, None] | None]:
    """Yield rank 0's work; None on another rank, whose work is done by then, and of a complete run."""
    from rocstar.train.compose.start import begin_run, checked

    ready = checked(order)
    if ready is None:
        yield None
        return
    order, found = ready
    with _joined(order.recipe) as world:
        if world.rank or world.only_serves:
            from rocstar.train.serving.nodes import follow, serve_alone

            (serve_alone if world.only_serves else follow)(order.recipe, world)
            yield None
            return
        with begin_run(order, world, found) as begun:
            yield _work(begun, world)


@contextlib.contextmanager
def _joined(recipe: Recipe) -> Iterator[World]:
    """Make this process one of the ranks, with the run's settings of torch."""
    world = World.join()
    device = local_device()
    on_cpu = device.type == "cpu"
    if on_cpu:
        keep_freed_memory()
    checkpoint.set_threads(world.threads(recipe.run.threads))
    try:
        with deterministic_torch(recipe.engine.deterministic, device):
            yield world
    finally:
        world.leave()
        if on_cpu:
            give_freed_memory_back()


async def _work(begun: Begun, world: World) -> None:
    """Build the run, do its loop, and see the last checkpoint written; then the other ranks go."""
    async with open_setup(begun, world) as setup, begun.build(setup) as run:
        with contextlib.closing(run.team):
            stopped: TrainingStopped | None = None
            try:
                async with run.journal:
                    await (begun.order.loop or run_stages)(run)
            except TrainingStopped as error:
                stopped = error
            with working("finishing the last checkpoint"):
                await run.team.finish_saving()
            tell_saved(run)
            await run.team.stop()
            if run.listeners.stop is not None:
                begun.start["status"] = STOPPED
            if stopped is not None:
                raise stopped
