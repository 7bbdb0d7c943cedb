"""Weights from memory into all servers of a node in one group, by disk to those where that fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rocstar.engine.inference.base import Inference, InferenceError
from rocstar.engine.inference.sglang.publish import Publisher
from rocstar.engine.inference.sglang.replica import Replica
from rocstar.engine.inference.sglang.weights import WeightSource

UPDATE_TIMEOUT_S = 900.0
"""Of one call that carries weights; a publish is a few of them."""


@dataclass(slots=True, kw_only=True, eq=False)
class Broadcast:
    """A `Spread` over the servers of one node, which join one group with this process."""

    backend: str
    folder: Path
    """For what goes by disk, where a publish is possible at all."""
    _publisher: Publisher | None = None

    async def __call__(
        self, replicas: Sequence[Inference], version: int, source: WeightSource
    ) -> Sequence[InferenceError | None]:
        servers = cast("Sequence[Replica]", replicas)
        engines = [server.engine for server in servers]
        if self._publisher is None or self._publisher.engines != engines:
            await self.close()
            self._publisher = Publisher(
                engines, backend=self.backend, spool=self.folder, timeout_s=UPDATE_TIMEOUT_S
            )
        with contextlib.ExitStack() as stack:
            for server in servers:
                stack.enter_context(server.on_trial())
            failures = await self._publisher.publish(version, source)
            return await asyncio.gather(
                *(_tried(s, source, f) for s, f in zip(servers, failures, strict=True))
            )

    async def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.__aexit__(None, None, None)


async def _tried(
    server: Replica, source: WeightSource, failure: InferenceError | None
) -> InferenceError | None:
    if failure is not None:
        return failure
    server.published(source)
    try:
        await server.try_out()
    except InferenceError as error:
        return error
    return None
