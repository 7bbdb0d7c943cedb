"""Publish to engines in the learner's process.

rank 0:      engine <── EnginePublisher <── the learner's weights, or the very same tensors
other node:  engine <── `serve_in` <── FullWeights, in which every rank takes part
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rocstar.engine.inference.base import RolloutEngine
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.publish.rank_commands import weight_source

Weights = list[tuple[str, Tensor]]
PUBLISH_TIMEOUT_S = 900.0


@dataclass(slots=True, eq=False)
class EnginePublisher:
    """Serves the learner's weights in this process; under FSDP the engines have an unsharded copy.

    Invariant: from the first change of a weight until its version serves, no engine is in a forward.
    """

    engine: RolloutEngine
    """Takes the version: the only one of `engines`, or the fleet of them."""
    engines: list[EmbeddedEngine]
    team: LearnerTeam
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)
    _is_holding: bool = field(default=False, init=False)

    @property
    def version(self) -> int:
        return self.engine.version

    @contextlib.asynccontextmanager
    async def updating(self) -> AsyncIterator[None]:
        """The engines decode on while the gradient is made, until the learner is about to change weights.

        On a GPU those that do not decode now free the memory of their KV cache for the learner.
        """
        for engine in self.engines:
            await engine.rest()
        try:
            with self._held:
                yield
        finally:
            self._is_holding = False

    def hold(self) -> None:
        """Return when no engine is in a forward; called in the learner's thread, inside `updating`."""
        if self._is_holding:
            return
        self._is_holding = True
        for engine in self.engines:
            self._held.enter_context(engine.hold())
        for engine in self.engines:
            engine.quiesce()

    async def publish(self, version: int) -> None:
        await self.engine.publish(version, await weight_source(self.team, version))


def serve_in(
    publish: Callable[[int, Weights], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop
) -> Callable[[int, Weights], str | None]:
    """Return `LocalEngine.serve`: it publishes on the loop and waits until the weights serve."""

    def serve(version: int, weights: Weights) -> str | None:
        publishing = asyncio.run_coroutine_threadsafe(publish(version, weights), loop)
        try:
            publishing.result(PUBLISH_TIMEOUT_S)
        except Exception as error:  # reported to every rank, and all of them stop
            publishing.cancel()
            return f"{type(error).__name__}: {error}"
        return None

    return serve
