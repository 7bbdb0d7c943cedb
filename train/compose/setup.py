"""The objects that the parts of a run share, and the run made of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.garbage import settled_garbage
from rocstar.engine.types import Task
from rocstar.train.groups.journal import Journal, origin_of
from rocstar.train.groups.source import OpenSource
from rocstar.train.learner import checkpoint
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.learner.world import World
from rocstar.train.publish.publisher import Publisher
from rocstar.train.reading.diagnosis.ringing import Watch
from rocstar.train.recipe.config import Recipe
from rocstar.train.record.callbacks import Callback, Listeners
from rocstar.train.record.console import Console
from rocstar.train.record.manifest import ConsoleLog
from rocstar.train.record.metrics import MetricsWriter
from rocstar.train.record.run_directory import METRICS
from rocstar.train.record.stall import guarded, stall_s
from rocstar.train.record.time_budget import LoopLag, TimeBudget
from rocstar.train.record.trackers import listening
from rocstar.train.run import Live, Run

if TYPE_CHECKING:
    from rocstar.train.serving.nodes import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOrder:
    """The arguments of `train`."""

    recipe: Recipe
    run_dir: Path
    resume: bool
    rollouts: Path | None
    callbacks: Sequence[Callback]
    loop: Callable[[Run], Awaitable[None]] | None = None
    """None: that of loop.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A run whose folder rank 0 has claimed."""

    order: TrainOrder
    build: Callable[[Setup], AbstractAsyncContextManager[Run]]
    """Builds the run: open_live or open_recorded."""
    saved: Path | None
    """The checkpoint to go on from."""
    cold: Path | None
    """The checkpoint inside the cold start to go on from; None if `saved` is set."""
    keep_bytes: int | None
    """The valid bytes of metrics.jsonl; None for a new run."""
    log: ConsoleLog
    start: dict[str, Any]
    """The entry of this start in the manifest."""
    send: Callable[[Start], None]
    """Sends the other ranks the start message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The objects that the parts of a run share on rank 0."""

    recipe: Recipe
    run_dir: Path
    world: World
    send: Callable[[Start], None]
    saved: Path | None
    cold: Path | None
    thread: ThreadPoolExecutor
    metrics: MetricsWriter
    listeners: Listeners
    watch: Watch
    lag: LoopLag

    def set_threads(self, threads: int) -> None:
        self.thread.submit(checkpoint.set_threads, threads).result()

    def run(
        self,
        team: LearnerTeam,
        publisher: Publisher,
        chat: ChatFormat,
        tasks: Sequence[Sequence[Task]],
        open_source: OpenSource,
        live: Live | None = None,
    ) -> Run:
        """Return the run of these parts, whose stages can begin."""
        # Imported when a run begins: they load the pages and the statistics of evaluations.
        from rocstar.train.evaluation import during_training
        from rocstar.train.reading.view.export_page import write_eval_report

        return Run(
            recipe=self.recipe,
            directory=self.run_dir,
            live=live,
            evaluation=during_training,
            publisher=publisher,
            team=team,
            decode=chat.decode,
            bodies=chat.body_mask,
            metrics=self.metrics,
            journal=Journal(
                self.run_dir,
                origin_of(self.recipe),
                decode=chat.decode,
                goes_on=self.saved is not None,
                keep_steps=self.recipe.run.keep_records,
            ),
            listeners=self.listeners,
            budget=TimeBudget(),
            lag=self.lag,
            write_eval_page=write_eval_report,
            open_source=open_source,
            tasks=tasks,
            saved=self.saved,
            alarms=self.watch.measured,
        )


@contextlib.asynccontextmanager
async def open_setup(begun: Begun, world: World) -> AsyncIterator[Setup]:
    """Open the shared objects of a run, and watch over the block."""
    recipe, run_dir, saved = begun.order.recipe, begun.order.run_dir, begun.saved
    stages, watch = recipe.stages, Watch()
    with (
        ThreadPoolExecutor(1, thread_name_prefix="device") as thread,
        MetricsWriter(run_dir / METRICS, keep_bytes=begun.keep_bytes) as metrics,
        Console(sum(s.steps for s in stages), [s.name for s in stages], log=begun.log) as console,
        listening(
            recipe,
            run_dir,
            console,
            (*begun.order.callbacks, watch),
            step=checkpoint.load_progress(saved)["step"] if saved else 0,
        ) as listeners,
        LoopLag() as lag,
        settled_garbage(),
    ):
        watch.tell = listeners.note
        if saved or begun.cold:
            listeners.note(f"resuming from {saved or begun.cold}")
        patience_s = stall_s(recipe.engine.trajectory_timeout_s)
        async with guarded(run_dir, stall_s=patience_s, note=listeners.note, board=console.waits):
            yield Setup(
                recipe=recipe,
                run_dir=run_dir,
                world=world,
                send=begun.send,
                saved=saved,
                cold=begun.cold,
                thread=thread,
                metrics=metrics,
                listeners=listeners,
                watch=watch,
                lag=lag,
            )
