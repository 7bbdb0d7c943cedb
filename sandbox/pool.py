"""The sandbox of one node: a zygote per flavour, bounded, restarted when it dies.

    run() -> permit -> zygote -> child        permits: max_live + max_queued per flavour
               ^                   |
               +-- given back when the child is gone

A caller waits first for a permit (that is the back-pressure), then for its result. `max_queued` calls wait
inside the zygote, so that a finished child is followed by the next without asking a busy event loop.
"""

import asyncio
import os
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

from rocstar.sandbox.flavours import FLAVOURS
from rocstar.sandbox.process import Zygote, ZygoteOptions
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError

LAYERS = ("seccomp", "landlock", "uid")
"""Layers that can be left out, for tests of what the others hold."""

START_ATTEMPTS = 2


def default_max_live() -> int:
    """Children at a time: one and a half per core keep the cores busy and hardly stretch wall clocks."""
    return max(2, len(os.sched_getaffinity(0)) * 3 // 2)


class _Lane:
    """The calls of one flavour. Invariant: at most one zygote is alive; a call in it holds a permit."""

    def __init__(self, options: ZygoteOptions, permits: int, needs_seccomp: bool) -> None:
        self._options = options
        self._needs_seccomp = needs_seccomp
        self._permits = asyncio.Semaphore(permits)
        self._starting = asyncio.Lock()
        self.zygote: Zygote | None = None
        self.closed = False

    async def ready(self) -> Zygote:
        if self.zygote is not None and self.zygote.alive:
            return self.zygote
        async with self._starting:
            if self.closed:
                raise SandboxError("the sandbox pool is closed", kind="closed", retryable=False)
            if self.zygote is None or not self.zygote.alive:
                await self._replace()
            assert self.zygote is not None
            return self.zygote

    async def _replace(self) -> None:
        if self.zygote is not None:
            await self.zygote.close()
            self.zygote = None
        for attempt in range(START_ATTEMPTS):
            zygote = Zygote(self._options)
            try:
                await zygote.start()
            except SandboxError as error:
                if not error.retryable or attempt + 1 == START_ATTEMPTS:
                    raise
                continue
            self.zygote = zygote
            break
        assert self.zygote is not None
        if self._needs_seccomp and "seccomp" not in self.zygote.isolation.split("+"):
            await self.zygote.close()
            raise SandboxError(
                "this kernel offers no seccomp filter, so programs could do anything this user can; run "
                "`rocstar sandbox doctor` for the fix, or accept it with allow_no_isolation=True",
                kind="no_isolation",
                retryable=False,
            )

    async def run(self, request: ExecRequest) -> ExecResult:
        await self._permits.acquire()
        try:
            zygote = await self.ready()
            call_id, future = zygote.submit(request, self._permits.release)
        except BaseException:
            self._permits.release()
            raise
        try:
            return await future
        except asyncio.CancelledError:
            zygote.cancel(call_id)
            raise

    async def close(self) -> None:
        self.closed = True
        async with self._starting:
            if self.zygote is not None:
                await self.zygote.close()


class SandboxPool:
    """Runs programs in confined children of warm zygotes. Use it as an async context manager.

    flavours: the zygotes to start (see flavours.py). max_live: children at a time per flavour; their
    `memory_bytes` together should fit the machine. max_queued: calls waiting in the zygote beyond those;
    further callers wait in `run`. allow_no_isolation: start even where no seccomp filter can be had; every
    result then says so in `isolation`. without: layers to leave out, for tests.

    Invariants: every `run` ends in exactly one result, SandboxError or cancellation; when `run` was cancelled
    or its deadline passed, the child is killed; after the context ends no process of the pool is left.
    """

    def __init__(
        self,
        flavours: Sequence[str] = ("stdlib",),
        *,
        max_live: int | None = None,
        max_queued: int = 64,
        allow_no_isolation: bool = False,
        without: Collection[str] = (),
    ) -> None:
        live = default_max_live() if max_live is None else max_live
        if live < 1 or max_queued < 0:
            raise ValueError(f"max_live={live}, max_queued={max_queued}: at least 1 and 0 are needed")
        for name in flavours:
            if name not in FLAVOURS:
                raise ValueError(f"unknown flavour {name!r}; there are {', '.join(FLAVOURS)}")
        for layer in without:
            if layer not in LAYERS:
                raise ValueError(f"unknown layer {layer!r}; these can be left out: {', '.join(LAYERS)}")
        self._lanes = {
            name: _Lane(
                ZygoteOptions(flavour=name, max_live=live, without=tuple(without)),
                live + max_queued,
                needs_seccomp=not allow_no_isolation,
            )
            for name in dict.fromkeys(flavours)
        }

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.TaskGroup() as group:
                for lane in self._lanes.values():
                    group.create_task(lane.ready())
        except BaseExceptionGroup as failures:
            await self._close()
            raise failures.exceptions[0] from None
        except asyncio.CancelledError:
            await asyncio.shield(self._close())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes.values():
                group.create_task(lane.close())

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        """Runs one program. `deadline`: absolute `loop.time()`. Raises SandboxError for failures of ours.

        A call that was lost because its zygote died is repeated once: programs have no effect outside."""
        lane = self._lanes.get(request.flavour)
        if lane is None:
            raise SandboxError(
                f"this pool has no flavour {request.flavour!r}, only {', '.join(self._lanes)}",
                kind="unknown_flavour",
                retryable=False,
            )
        if deadline is None:
            return await self._run_twice(lane, request)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._run_twice(lane, request)
        except TimeoutError:
            raise SandboxError(
                "the deadline passed before the program ended", kind="deadline", retryable=True
            ) from None

    async def _run_twice(self, lane: _Lane, request: ExecRequest) -> ExecResult:
        try:
            return await lane.run(request)
        except SandboxError as error:
            if error.kind != "zygote_died":
                raise
        return await lane.run(request)
