"""Several inference replicas behind one `Inference`, with the scheduler in front.

    generate ──TurnReady──> Scheduler ──Grant──> replica.generate ──TurnEnded──> back to the rollout
                ^                                     │ refused, hung or gone
                └── same ids and the tokens it had <──┘   (replicas.py takes it down and brings it back)

A turn waits for its grant, then for its replica, both until its deadline. When a replica goes down its turns
are ended immediately: each continues on another replica from its token prefix, with the noise of the same
(seed, position), so that the trajectory does not change. The scheduling policy alone decides where a turn
runs, with one exception: a turn that failed on a replica which still serves others runs on another replica
as a guest, for this turn. The scheduler keeps its first replica as its home.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from rocstar.engine.fleet.replicas import FleetCounts, FleetLimits, Replicas, Restart, SendToAll, Slot
from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.fleet.trajectory_state import TokenStream, TrajectoryState
from rocstar.engine.inference import base
from rocstar.engine.inference.weights import WeightSource
from rocstar.engine.scheduling.events import Drop, Event, Grant, Left, Refuse, Submitted, TurnEnded, TurnReady
from rocstar.engine.scheduling.schedule_state import SchedulingPolicy
from rocstar.engine.types import BRANCH

__all__ = ["Fleet", "FleetCounts", "FleetLimits", "Restart", "SendToAll"]


class Fleet:
    """Implements `Inference` over replicas that their owner has entered and will leave.

    Invariants: a turn runs on at most one replica at a time; every token it returns was returned by a replica
    exactly once. A turn fails only by its deadline, by `max_attempts` failures, by `max_lost` replicas that
    went down under it, by a refusal of its own (bad request, too long), or when no replica is left.
    """

    def __init__(
        self,
        replicas: Sequence[base.Inference],
        *,
        policy: SchedulingPolicy,
        limits: FleetLimits | None = None,
        restart: Restart | None = None,
        send_to_all: SendToAll | None = None,
        version: int = 0,
        stage: str = "rl",
    ) -> None:
        """`version`: what all replicas serve now. `send_to_all`: takes weights to several; None = each."""
        if not replicas:
            raise ValueError("a fleet needs at least one replica")
        self.stage = stage
        """The stage of trajectories that begin from now on: lengths are learned per stage."""
        self.scheduler = Scheduler(policy)
        self._limits = limits or FleetLimits()
        self.replicas = Replicas(
            replicas,
            limits=self._limits,
            restart=restart,
            send_to_all=send_to_all,
            version=version,
            tell=self._tell,
            lost=self._lost,
        )
        self._busy = base.BusyClock()
        self._states: dict[str, TrajectoryState] = {}
        self._granting: dict[str, Callable[[], None]] = {}
        """Callbacks for the first placement of a trajectory on a replica."""
        self._listeners: dict[str, base.Heard] = {}
        """Callbacks for the tokens of a trajectory as they arrive."""
        self._tasks: asyncio.TaskGroup | None = None

    async def __aenter__(self) -> Fleet:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self.replicas.start(self._tasks)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        self.replicas.stop()
        if isinstance(error, asyncio.CancelledError):  # perhaps the group's own: a bug in one of its tasks
            await tasks.__aexit__(kind, error, trace)
        else:  # an error of the body stays itself
            await tasks.__aexit__(None, None, None)

    @property
    def version(self) -> int:
        return self.replicas.version

    @property
    def busy_s(self) -> float:
        """Seconds so far in which a turn waited or ran."""
        return self._busy.busy_s

    @property
    def starved_s(self) -> float:
        """... and one of them waited for room on a replica, or for a replica."""
        return self._busy.starved_s

    async def wait_up(self, timeout_s: float) -> bool:
        """Wait until a replica is up; whether that came to be."""
        return await self.replicas.wait_up(timeout_s)

    async def suspend(self) -> None:
        """Suspend all replicas. Turns keep their tokens and wait for `resume`."""
        await self.replicas.suspend()

    async def resume(self, version: int, source: WeightSource | None) -> None:
        """Start all replicas again from `source`. Errors as of `publish`."""
        try:
            await self.replicas.resume(version, source)
        finally:
            self._fail_if_hopeless()

    # ---- the protocol ----

    async def generate(
        self, ids: list[int], *, max_new_tokens: int, request_id: str, deadline: float | None, **rest: Any
    ) -> base.Generation:
        state = self._begin_turn(request_id, len(ids), max_new_tokens)
        written = base.GenerationBuilder()
        heard = self._listeners.get(request_id)
        state.stream = None if heard is None else TokenStream(heard)
        try:
            with self._busy.track_turn():
                while not state.is_given_up(self._limits):
                    slot = await self._granted(state, request_id, len(ids) + len(written.ids), deadline)
                    if slot is None:
                        return written.result(base.StopReason.aborted)
                    piece = await self._run_somewhere(
                        state,
                        slot,
                        ids + written.ids if written.ids else ids,
                        max_new_tokens=max_new_tokens - len(written.ids),
                        request_id=request_id,
                        deadline=deadline,
                        **rest,
                    )
                    if piece is not None:
                        written.add_generation(piece)
                        if state.stream is not None:
                            state.stream.take(piece, state.written)
                        state.written = len(written.ids)
                    if state.granted:  # else the scheduler knows that the turn's replica is gone
                        state.granted = False
                        new_tokens = 0 if piece is None else len(piece.ids)
                        self._tell(TurnEnded(traj=request_id, new_tokens=new_tokens))
                    finish = state.finish(piece, full=len(written.ids) >= max_new_tokens)
                    if finish is not None:
                        state.finished = finish is not base.StopReason.aborted
                        return written.result(finish)
                    self.replicas.counts.turns_continued += 1
            detail = f"{request_id!r} failed {state.failures.total()} times, and {state.lost} replicas under it"
            raise base.InferenceError("replicas_failed", detail, retryable=True)
        except BaseException:  # also when cancelled: no caller asks for this request again
            self._forget(request_id)
            raise
        finally:
            state.asking = False

    def load(self) -> base.KvLoad:
        """Return sums over the replicas that are up; turns without a grant count as waiting."""
        loads = [slot.replica.load() for slot in self.replicas.slots if slot.up]
        ungranted = sum(state.waiting is not None for state in self._states.values())
        return base.KvLoad(
            total=sum(load.total for load in loads),
            used=sum(load.used for load in loads),
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting for load in loads) + ungranted,
            held_bytes=sum(load.held_bytes for load in loads),
        )

    async def publish(
        self, version: int, source: WeightSource | None = None, *, keep: WeightSource | None = None
    ) -> None:
        """All replicas at once. One that does not take the version leaves the fleet until it has it, from
        `keep` if the source does not outlive the call.

        ValueError unless `version` is above the one served now; InferenceError if no replica took it.
        """
        try:
            await self.replicas.take_version(version, source, keep)
        finally:
            self._fail_if_hopeless()

    async def abort(self, request_id: str) -> None:
        state = self._states.get(request_id)
        if state is None:
            return
        state.aborted = True
        if state.waiting is not None and not state.waiting.done():
            state.waiting.set_result(None)
        elif state.at is not None:
            await state.at.replica.abort(request_id)

    def join(self, request_ids: Sequence[str]) -> None:
        """Lockstep needs one engine: with several, placement is unknown in advance."""
        if len(self.replicas.slots) == 1:
            self.replicas.slots[0].replica.join(request_ids)

    def branch(self, request_id: str, branches: Sequence[str]) -> None:
        """As `join`: a branch may run on another replica than its parent."""
        if len(self.replicas.slots) == 1 and isinstance(replica := self.replicas.slots[0].replica, base.TakesBranches):
            replica.branch(request_id, branches)

    def on_grant(self, request_id: str, granted: Callable[[], None]) -> None:
        """The scheduler's grant counts, and then the replica's own."""

        def grant_once() -> None:
            if self._granting.pop(request_id, None) is not None:
                granted()

        self._granting[request_id] = grant_once

    def on_tokens(self, request_id: str, heard: base.Heard) -> None:
        """For a replica that reports no tokens, report all tokens at the end of the turn."""
        self._listeners[request_id] = heard

    def release(self, request_id: str) -> None:
        self._granting.pop(request_id, None)
        self._listeners.pop(request_id, None)
        self._forget(request_id)

    # ---- one turn ----

    def _begin_turn(self, request_id: str, prompt_tokens: int, max_new_tokens: int) -> TrajectoryState:
        if self._tasks is None:
            raise base.InferenceError("engine_stopped", "the fleet is not entered", retryable=False)
        if not prompt_tokens or max_new_tokens < 1:
            detail = f"{prompt_tokens} ids, {max_new_tokens} new tokens"
            raise base.InferenceError("bad_request", detail, retryable=False)
        state = self._states.get(request_id)
        if state is not None and state.asking:
            raise base.InferenceError("bad_request", f"{request_id!r} has a request already", retryable=False)
        if state is None:
            state = self._states[request_id] = TrajectoryState()
            self._tell(
                Submitted(
                    traj=request_id,
                    group=group_of(request_id),
                    stage=self.stage,
                    prompt_tokens=prompt_tokens,
                    max_tokens=max_new_tokens,
                )
            )
        if request_id not in self._states:
            detail = f"{prompt_tokens} + {max_new_tokens} tokens exceed the KV of every replica"
            raise base.InferenceError("too_long", detail, retryable=False)
        state.asking, state.aborted, state.finished = True, False, False
        state.failures.clear()
        state.lost = state.written = 0
        return state

    async def _granted(
        self, state: TrajectoryState, request_id: str, context_tokens: int, deadline: float | None
    ) -> Slot | None:
        """Wait for the grant; None if the request was aborted meanwhile."""
        if self.replicas.hopeless:
            raise _no_replica()
        state.waiting = asyncio.get_running_loop().create_future()
        self._tell(TurnReady(traj=request_id, context_tokens=context_tokens))
        try:
            if state.waiting.done():
                replica = state.waiting.result()
            else:
                with self._busy.track_wait():
                    async with asyncio.timeout_at(deadline):
                        replica = await state.waiting
        finally:
            state.waiting = None
        if replica is None or state.aborted:
            self._forget(request_id)
            return None
        return self.replicas.slots[replica]

    async def _run_somewhere(
        self, state: TrajectoryState, home: Slot, ids: list[int], *, request_id: str, **rest: Any
    ) -> base.Generation | None:
        """Return the answer of the granted replica, or of one that takes the turn as a guest; None if none
        answered."""
        piece = await self._run(state, home, ids, request_id=request_id, **rest)
        while piece is None and not state.aborted and not state.is_given_up(self._limits):
            host = self.replicas.host_for(home, state.failures)
            if host is None:
                break
            self.replicas.counts.turns_continued += 1
            try:
                piece = await self._run(state, host, ids, request_id=request_id, **rest)
            finally:
                host.replica.release(request_id)
        return piece

    async def _run(
        self,
        state: TrajectoryState,
        slot: Slot,
        ids: list[int],
        *,
        request_id: str,
        deadline: float | None,
        **rest: Any,
    ) -> base.Generation | None:
        """Return the replica's answer; None if it failed and the turn may be tried again."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(loop.time() + self._limits.turn_timeout_s) as cut:
                state.at, slot.running[request_id] = slot, cut
                slot.failures.open.add(request_id)
                if (granted := self._granting.get(request_id)) is not None:
                    slot.replica.on_grant(request_id, granted)
                if state.stream is not None:
                    state.stream.listen(slot.replica, request_id, state.written)
                try:
                    piece = await slot.replica.generate(ids, request_id=request_id, deadline=deadline, **rest)
                finally:
                    slot.failures.open.discard(request_id)
                    del slot.running[request_id]
                    state.at = None
            slot.failures.answered()
            return piece
        except base.InferenceError as error:
            if not (error.retryable or error.kind == "engine_stopped"):
                raise
            failures = slot.failures
            if slot.up and self._limits.failures <= failures.failed(
                request_id, slot.running, is_only=self.replicas.num_up == 1
            ):
                self.replicas.down(slot)
        except TimeoutError:
            if deadline is not None and loop.time() >= deadline:
                raise
            self.replicas.down(slot)
        if not slot.suspended:  # a stop on purpose is no failure
            state.failures[slot.index] += 1
        self._fail_if_hopeless()
        await asyncio.sleep(0)  # requests that failed with it go first: a server's end fails all of them
        return None

    def _forget(self, request_id: str) -> None:
        """The trajectory is over, or its request was given up: its KV may go."""
        state = self._states.pop(request_id, None)
        if state is None:
            return
        if state.home is not None:
            self.replicas.slots[state.home].replica.release(request_id)
        self._tell(Left(traj=request_id, finished=state.finished))

    # ---- the scheduler's side ----

    def _tell(self, event: Event) -> None:
        for command in self.scheduler.handle(event):
            match command:
                case Grant():
                    self._move(command.traj, command.replica)
                    self._states[command.traj].grant(command.replica)
                case Drop():
                    self._move(command.traj, None)
                case Refuse():
                    state = self._states.pop(command.traj)
                    state.fail(base.InferenceError("too_long", command.detail, retryable=False))

    def _move(self, traj: str, home: int | None) -> None:
        state = self._states[traj]
        if state.home is not None and state.home != home:
            self.replicas.slots[state.home].replica.release(traj)
        state.home = home

    def _lost(self, slot: Slot) -> None:
        """A replica went down, with the KV of all that lived there."""
        context = self.scheduler.state.trajectories
        for traj, state in self._states.items():
            if not slot.suspended and (state.at is slot or slot.index in state.failures):
                state.lost += 1
            if state.home == slot.index:
                self.replicas.counts.recomputed_tokens += context[traj].context_tokens
                state.home, state.granted = None, False

    def _fail_if_hopeless(self) -> None:
        if self.replicas.hopeless:
            for state in self._states.values():
                state.fail(_no_replica())


def group_of(name: str) -> str:
    """Return the group of a trajectory by its name (`TrajectoryKey.__str__`), of a branch its root's."""
    root, _, branch = name.rpartition("~")
    return (root if root and BRANCH.fullmatch(branch) else name).rpartition("/")[0] or name


def _no_replica() -> base.InferenceError:
    return base.InferenceError("no_replica", "every replica is down and none comes back", retryable=True)
