"""One broadcast into all servers of a node; each serves only after its checksums are verified."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rocstar.engine.inference.base import Inference, InferenceError
from rocstar.engine.inference.sglang.replica import Replica
from rocstar.engine.inference.sglang.sender import WeightSender
from rocstar.engine.inference.weights import WeightSource


@dataclass(slots=True, kw_only=True, eq=False)
class BroadcastToAll:
    """A `SendToAll` (fleet/replicas.py): the servers of one node join one group with this process."""

    backend: str
    """The backend of the collective: "gloo" or "nccl"."""
    folder: Path
    """Where weights lie that go by disk, as a broadcast of theirs failed."""
    timeout_s: float
    """The time of one call that carries weights."""
    _sender: WeightSender | None = None

    async def __call__(
        self, replicas: Sequence[Inference], version: int, source: WeightSource | None
    ) -> Sequence[InferenceError | None]:
        assert source is not None, "servers share no weights with us"
        servers = cast("Sequence[Replica]", replicas)
        engines = [server.engine for server in servers]
        if self._sender is None or self._sender.engines != engines:
            await self.close()
            self._sender = WeightSender(
                engines, backend=self.backend, folder=self.folder, timeout_s=self.timeout_s
            )
        with contextlib.ExitStack() as stack:
            for server in servers:
                stack.enter_context(server.on_trial())
            failures = await self._sender.send(version, source)
            return await asyncio.gather(
                *(_tried(s, source, f) for s, f in zip(servers, failures, strict=True))
            )

    async def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.__aexit__(None, None, None)


async def _tried(
    server: Replica, source: WeightSource, failure: InferenceError | None
) -> InferenceError | None:
    if failure is not None:
        return failure
    server.holds(source)
    try:
        await server.try_out()
    except InferenceError as error:
        return error
    return None
