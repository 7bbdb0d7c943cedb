"""Load new weights into running servers, without losing a token, and verify them by checksums.

    pause(retract) ─> disk, or begin ─> buckets, each hashed ─> end ─> checksums ─> continue
                       ^ after a failed broadcast           │ wrong checksums: disk, once more
                                                            └ still wrong: the server serves nothing

This order with flush_cache is the only one of SGLang's that is exact: requests in flight go back to the
queue, their KV is recomputed under the new weights, and every token's log-prob is that of the weights it is
labelled with. The others (in_place, no flush, no pause) leave KV of the old weights behind, or wait for every
request to end. There is no option to choose them.
Requests in flight on a server that cannot load the new weights return as aborted, with their tokens.

The gatherer of a `WeightStream` waits for each bucket to be sent and hashed, but not after a server fails:
then the rest is dropped, and the servers wait for the files of the version.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.sglang.broadcast import BroadcastGroup, buckets
from rocstar.engine.inference.sglang.checksums import PassingChecksums, check_layout, differences
from rocstar.engine.inference.sglang.engine import SGLangEngine
from rocstar.engine.inference.weight_stream import Bucket, WeightStream
from rocstar.engine.inference.weights import DiskWeights, LiveWeights, WeightSource

LOG = logging.getLogger(__name__)
DRAIN_S = 10.0
"""The time aborted requests have to come back with their tokens."""
Failures = dict[SGLangEngine, InferenceError]
Expected = dict[SGLangEngine, dict[str, str] | None]
"""The checksums that each server must report; None, or no entry, if they cannot be predicted."""


class WeightSender:
    """Sends to several servers as to one; a DiskWeights through its folder, LiveWeights and a WeightStream by
    broadcast.

    Args:
        backend: None = never broadcast.
        folder: a folder of ours that every server can read; LiveWeights are written there where a broadcast
            is not to be had.
        timeout_s: the time of one update call.

    Invariant: after `send` each server either serves exactly `source` as `version`, or is broken.
    """

    def __init__(
        self,
        engines: Sequence[SGLangEngine],
        *,
        backend: str | None = None,
        folder: Path | None = None,
        bucket_bytes: int = 1 << 29,
        timeout_s: float = 300.0,
    ) -> None:
        self.engines = list(engines)
        self._backend, self._folder = backend, folder
        self._bucket_bytes, self._timeout_s = bucket_bytes, timeout_s
        self._group: BroadcastGroup | None = None

    async def __aenter__(self) -> WeightSender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave_group()

    async def send(self, version: int, source: WeightSource) -> list[InferenceError | None]:
        """One entry per server, in order: None where it serves `source` as `version` now.

        ValueError before anything is sent: the version does not follow, or the tensors are not the model's.
        """
        try:
            for engine in self.engines:
                if engine.layout is not None:
                    check_layout(engine.layout, await asyncio.to_thread(source.shapes))
            for engine in self.engines:
                engine.allow(version)
            failures = await self._send(version, source, self.engines)
        finally:
            if isinstance(source, WeightStream):
                source.let_go()
        return [failures.get(engine) for engine in self.engines]

    async def restore(self, version: int, source: WeightSource, engine: SGLangEngine) -> None:
        """Bring a server that was started again to the weights that the others serve as `version`. One that a
        publish has reached meanwhile has newer ones already."""
        failure = (await self._send(version, source, [engine], restoring=True)).get(engine)
        if failure is not None:
            raise failure

    async def _send(
        self, version: int, source: WeightSource, engines: Sequence[SGLangEngine], *, restoring: bool = False
    ) -> Failures:
        expected = {} if isinstance(source, WeightStream) else await _expected(engines, source)
        failures: Failures = {}
        unsure = list(engines)
        async with AsyncExitStack() as stack:
            for engine in engines:
                await stack.enter_async_context(engine.publishing)
                if restoring and engine.broken is None:
                    return failures
                engine.paused = True
            try:
                await self._each(engines, failures, _pause)
                await self._transfer(version, source, _without(engines, failures), expected, failures)
                for engine in _without(engines, failures):
                    engine.version, engine.broken = version, None
                    unsure.remove(engine)
                await self._each(list(unsure), dict(failures), self._let_go)
                await self._each(_without(engines, failures), failures, _continue)
            finally:
                lost = InferenceError("publish_broken_off", f"of version {version}", retryable=True)
                for engine in {*unsure, *failures}:
                    engine.break_off(failures.get(engine, lost))
                for engine in engines:
                    engine.paused = False
        return failures

    async def _let_go(self, engine: SGLangEngine) -> None:
        """The server's weights are unknown: its queue must not run. Queued requests keep their tokens."""
        engine.broken = InferenceError("wrong_weights", "a publish failed", retryable=True)
        await engine.api.abort_all()
        await engine.drained(DRAIN_S)
        await _continue(engine)

    async def _transfer(
        self,
        version: int,
        source: WeightSource,
        engines: Sequence[SGLangEngine],
        expected: Expected,
        failures: Failures,
    ) -> None:
        """Send by broadcast if there is one, then by disk to those where it failed; what failed twice is in
        `failures`."""
        left = list(engines)
        verify = partial(_verify, expected=expected, version=version)
        if self._backend is not None and isinstance(source, LiveWeights | WeightStream) and left:
            missed: Failures = {}
            expected |= await self._broadcast(version, source, left, missed)
            await self._each(_without(left, missed), missed, verify)
            left = list(missed)
            for engine, failure in missed.items():
                LOG.warning("%s: %s; version %d goes there by disk", engine.api.url, failure, version)
        if not left:
            return
        async with AsyncExitStack() as stack:
            if isinstance(source, WeightStream):
                try:
                    disk = await source.files()
                except InferenceError as failure:
                    failures |= dict.fromkeys(left, failure)
                    return
                expected |= await _expected(left, disk)
            elif isinstance(source, LiveWeights):
                made = tempfile.TemporaryDirectory(prefix=f"v{version}-", dir=self._folder)
                folder = Path(stack.enter_context(made))
                disk = await asyncio.to_thread(source.save, folder)
            elif isinstance(source, DiskWeights):
                disk = source
            else:
                raise TypeError(f"cannot publish a {type(source).__name__}")
            body = {
                "model_path": str(disk.path),
                "weight_version": str(version),
                "flush_cache": True,
                "abort_all_requests": False,
            }

            async def load(engine: SGLangEngine) -> None:
                await engine.api.post("/update_weights_from_disk", body, timeout_s=self._timeout_s)
                await verify(engine)

            await self._each(left, failures, load)

    async def _broadcast(
        self, version: int, source: LiveWeights | WeightStream, engines: Sequence[SGLangEngine], missed: Failures
    ) -> Expected:
        """Broadcast into all servers; a collective fails as a whole, and then no server's weights are
        certain.

        Returns the expected checksums if the source can be read only once.
        """
        passing = _passing(engines, source) if isinstance(source, WeightStream) else {}
        try:
            if self._group is None or not self._group.has_members(engines):
                await self._leave_group()
                assert self._backend is not None
                self._group = await BroadcastGroup(
                    engines, backend=self._backend, timeout_s=self._timeout_s
                ).__aenter__()
            group = self._group
            await _all(e.api.post("/begin_weight_update", {}, timeout_s=self._timeout_s) for e in engines)
            try:
                async for bucket in buckets(source, self._bucket_bytes):
                    hashing = asyncio.to_thread(_hash, bucket, set(passing.values()))
                    await _all([group.send(bucket, version=version), hashing])
                    del bucket  # while the next is waited for
            finally:
                await _all(e.api.post("/end_weight_update", {}, timeout_s=self._timeout_s) for e in engines)
        except InferenceError as failure:
            missed |= dict.fromkeys(engines, failure)
            await self._leave_group()
        except BaseException:
            self._group = None  # a rank may still be in a collective: the group must not be used again
            raise
        return {engine: one.found() for engine, one in passing.items()}

    async def _leave_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            await group.__aexit__(None, None, None)

    async def _each(
        self, engines: Iterable[SGLangEngine], failures: Failures, work: Callable[[SGLangEngine], Awaitable[None]]
    ) -> None:
        """`work` on every engine at once; those where it fails are in `failures`."""
        chosen = list(engines)
        outcomes = await asyncio.gather(*(work(engine) for engine in chosen), return_exceptions=True)
        for engine, outcome in zip(chosen, outcomes, strict=True):
            if isinstance(outcome, InferenceError):
                failures[engine] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome


def _passing(engines: Iterable[SGLangEngine], source: WeightSource) -> dict[SGLangEngine, PassingChecksums]:
    """One hash for all servers that report the same checksums; none where they cannot be predicted."""
    by_kind: dict[tuple[frozenset[str], str], PassingChecksums] = {}
    passing = {}
    for engine in engines:
        if engine.dtype is not None:
            kind = frozenset(engine.checksums), engine.dtype
            if kind not in by_kind:
                by_kind[kind] = PassingChecksums(source.shapes(), list(engine.checksums), engine.dtype)
            passing[engine] = by_kind[kind]
    return passing


async def _expected(engines: Iterable[SGLangEngine], source: WeightSource) -> Expected:
    passing = _passing(engines, source)
    for checksums in set(passing.values()):
        await asyncio.to_thread(checksums.add_all, source)
    return {engine: checksums.found() for engine, checksums in passing.items()}


def _hash(bucket: Bucket, checksums: Iterable[PassingChecksums]) -> None:
    for one in checksums:
        for name, tensor in bucket:
            one.add(name, tensor)


async def _pause(engine: SGLangEngine) -> None:
    await engine.api.post("/pause_generation", {"mode": "retract"})


async def _continue(engine: SGLangEngine) -> None:
    await engine.api.post("/continue_generation", {})


async def _verify(engine: SGLangEngine, *, expected: Expected, version: int) -> None:
    reported, wanted = await engine.read_checksums(), expected.get(engine)
    if wanted is not None:
        wrong = differences(wanted, reported)
        if wrong:
            detail = f"{len(wrong)} of {len(reported)} tensors are not version {version}'s, {wrong[0]} first"
            raise InferenceError("wrong_weights", detail, retryable=True)
    elif reported == engine.checksums:
        raise InferenceError("wrong_weights", f"version {version} changed no tensor", retryable=True)
    engine.checksums = reported


async def _all(calls: Iterable[Awaitable[object]]) -> None:
    """Every call to its end, then the first failure."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _without(engines: Iterable[SGLangEngine], failures: Failures) -> list[SGLangEngine]:
    return [engine for engine in engines if engine not in failures]
