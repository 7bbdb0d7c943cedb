"""The SGLang servers of one node, and the versions that they serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rocstar.engine.fleet.fleet import Fleet
from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.sglang.canary import Canary, Continuation
from rocstar.engine.inference.sglang.replica import Replica
from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.inference.weights import DiskWeights, WeightSource
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped

UPDATE_TIMEOUT_S = 900.0
"""The time of one call that carries weights; a publish is a few of them."""


@dataclass(slots=True, kw_only=True, eq=False)
class NodeServers:
    """Running servers of this node and the fleet in front of them.

    Invariant: every server serves as a version exactly the weights passed to `serve` for it, also after a
    restart.
    """

    fleet: Fleet
    replicas: list[Replica]
    recipe: Recipe
    start_from: Callable[[Path], None]
    """Sets the folder from which servers start from now on."""
    canary: Canary | None = None
    patience_s: float = 1800.0
    """The time a server has to come back, where none took a version."""

    async def make_room(self) -> None:
        """Stop the servers if the learner needs their place; otherwise they go on with their own weights."""
        if self.recipe.engine.placement == "restart":
            await self.fleet.suspend()

    async def serve(
        self, version: int, kept: DiskWeights, live: WeightStream | None = None, reference: Continuation | None = None
    ) -> None:
        """Serve `kept` as `version`, or `live`, equal weights from memory: then `kept` is for servers that
        restart later, and may still be being written. `reference`: expected answer of the canary.

        In every case `live` is released and its outcome set.

        Raises TrainingStopped if no server loads it within `patience_s`, restarts included.
        """
        try:
            await self._serve(version, kept, live, reference)
        except BaseException as error:
            if live is not None:
                live.settle(False, error if isinstance(error, Exception) else RuntimeError("it was cancelled"))
            raise
        finally:
            if live is not None:
                live.let_go()
                live.settle(True)

    async def _serve(
        self, version: int, kept: DiskWeights, live: WeightStream | None, reference: Continuation | None
    ) -> None:
        if self.canary is not None and reference is not None:
            self.canary.expect(version, reference)
        source: WeightSource = kept if live is None else live
        try:
            try:
                if self.recipe.engine.placement == "restart":
                    self.start_from(kept.path)
                    await self.fleet.resume(version, kept)
                else:
                    await self.fleet.publish(version, source, keep=kept)
            finally:
                for replica in self.replicas:
                    replica.keep(version, kept)
        except InferenceError as error:
            if live is not None:  # the files are written next, and a restarted server needs them
                live.let_go()
                live.settle(False)
            try:
                await asyncio.to_thread(kept.shapes)
            except (OSError, ValueError) as problem:
                raise TrainingStopped(
                    f"no inference server took version {version} ({error}), and none can when it comes back: "
                    f"{problem}; fix that, then go on with --resume"
                ) from None
            if not await self.fleet.wait_up(self.patience_s):
                logs = ", ".join(str(replica.log_path) for replica in self.replicas)
                raise TrainingStopped(
                    f"no inference server took version {version} ({error}), and none came back within "
                    f"{self.patience_s:.0f} s; see {logs}, then go on with --resume"
                ) from None
