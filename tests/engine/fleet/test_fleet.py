"""The fleet through the real rollout loop: replicas are killed, hang, answer 500, refuse a version or cut
their turns, and the same trajectories come out as if nothing had happened."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from rocstar.engine.fleet.fleet import Fleet, FleetLimits
from rocstar.engine.inference.base import BusyClock, Generation, InferenceError, StopReason
from rocstar.engine.inference.weights import LiveWeights
from rocstar.engine.rollout.group import all_groups, run_group
from rocstar.engine.scheduling.policies import POLICIES, make_policy
from rocstar.engine.types import Failed, Group, Scored, Task, Trajectory
from rocstar.sandbox.types import ExecRequest, ExecResult
from tests.fakes import asking
from tests.fakes.agents import CHAT, TOKENIZER, make_agent, python_tools, tool_call
from tests.fakes.fake_replica import FakeReplica, Scripts
from tests.fakes.invariants import check_schedule
from tests.fakes.sandbox import ok
from tests.fakes.scripted_policy import check_trajectory, on_virtual_time, run_virtual

STOP = min(CHAT.stop_ids)
CALL = tool_call("1")
GROUPS, SIZE, NUM_REPLICAS = 6, 4, 3
PROMPT = list(range(10))
ask = partial(asking.ask, max_new_tokens=500, stop_ids=frozenset({STOP}))


class Sandbox:
    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        await asyncio.sleep(0.5)
        return ok("1")


def turns_of(request_id: str) -> list[list[int]]:
    """Trajectory k of a group thinks and calls k % 3 times, then answers."""
    sibling = int(request_id.rpartition("/")[2])
    said = [f"let me see, {request_id} {k}: {CALL}" for k in range(sibling % 3)] + [f"{request_id}: 4"]
    return [[*TOKENIZER.encode(text), STOP] for text in said]


def replicas(count: int = NUM_REPLICAS, **options: Any) -> list[FakeReplica]:
    scripts = Scripts(turns_of)
    return [FakeReplica(scripts, **{"token_s": 0.05, **options}) for _ in range(count)]


async def rollout(fleet: Any, *, timeout_s: float = 1e5) -> list[Group]:
    tasks = [Task(id=f"t{k}", source="s", question="q", answer="4") for k in range(GROUPS)]
    agent = make_agent(fleet, tools=python_tools(Sandbox()), timeout_s=timeout_s)
    return await all_groups(lambda task: run_group(agent, task, size=SIZE, seed=1, step=0), tasks)


def essence(groups: list[Group]) -> dict[str, tuple[Any, ...]]:
    """All of each trajectory that must not depend on where it ran; fails on a duplicate."""
    out: dict[str, tuple[Any, ...]] = {}
    for trajectory in (t for g in groups for t in g.trajectories):
        check_trajectory(trajectory)
        assert str(trajectory.key) not in out
        t = trajectory
        out[str(t.key)] = (
            t.ids.tolist(),
            np.nan_to_num(t.logprobs, nan=1.0).tolist(),
            t.segments,
            t.finish_reason,
            t.outcome,
        )
    return out


def fly(
    made: list[FakeReplica],
    *,
    policy: str = "predictive",
    limits: FleetLimits | None = None,
    meanwhile: Callable[[Fleet], Any] | None = None,
    restart: Any = None,
    timeout_s: float = 1e5,
    **tunables: Any,
) -> tuple[list[Group], Fleet]:
    """Roll the groups out on these replicas while `meanwhile` does its worst."""

    async def main() -> tuple[list[Group], Fleet]:
        async with Fleet(made, policy=make_policy(policy, **tunables), limits=limits, restart=restart) as fleet:
            async with asyncio.TaskGroup() as tasks:
                if meanwhile is not None:
                    tasks.create_task(meanwhile(fleet))
                groups = await rollout(fleet, timeout_s=timeout_s)
            check_schedule(fleet.scheduler)
            assert not fleet.scheduler.state.trajectories
            assert fleet.load().used == 0
            return groups, fleet

    return run_virtual(main())


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, tuple[Any, ...]]:
    groups, fleet = fly(replicas())
    assert fleet.replicas.counts.turns_continued == 0
    return essence(groups)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_same_trajectories(policy: str, undisturbed: dict[str, Any]) -> None:
    made = replicas()
    groups, _ = fly(made, policy=policy)
    assert essence(groups) == undisturbed
    assert sum(bool(r.requests) for r in made) > 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fault", ["kill", "hang"])
@pytest.mark.parametrize("at_s", [0.0, 1.0, 7.0])
def test_replica_lost_in_the_middle(policy: str, fault: str, at_s: float, undisturbed: dict[str, Any]) -> None:
    made = replicas()

    async def meanwhile(fleet: Fleet) -> None:
        await asyncio.sleep(at_s)
        getattr(made[0], fault)()

    groups, fleet = fly(made, policy=policy, meanwhile=meanwhile, limits=FleetLimits(turn_timeout_s=60.0, failures=2))
    assert essence(groups) == undisturbed
    assert (
        fleet.replicas.num_up == 2
        and fleet.replicas.counts.replicas_lost == 1
        and fleet.replicas.counts.turns_continued >= 1
    )


@on_virtual_time
async def test_all_turns_of_a_hung_replica_are_cut_off_at_once() -> None:
    """Not each at its own time-out: the second has asked 40 s after the first."""
    made = replicas(2)

    limits = FleetLimits(turn_timeout_s=60.0)
    async with Fleet(made, policy=make_policy("static"), limits=limits) as fleet:
        made[0].hang()
        first = asyncio.create_task(ask(fleet, PROMPT, "s0/a/0"))
        await asyncio.sleep(40.0)
        second = asyncio.create_task(ask(fleet, PROMPT, "s0/a/3"))
        assert {(await task).finish for task in (first, second)} == {StopReason.stop}
        assert 60.0 < asyncio.get_running_loop().time() < 70.0


def test_turns_cut_short_keep_their_tokens(undisturbed: dict[str, Any]) -> None:
    """A server that aborts its requests answers with what it has: those tokens are not written again."""
    made = replicas()

    async def meanwhile(fleet: Fleet) -> None:
        for _ in range(3):
            await asyncio.sleep(1.3)
            for replica in made:
                replica.cut_all()

    groups, fleet = fly(made, meanwhile=meanwhile)
    assert essence(groups) == undisturbed
    contexts = Counter(request for r in made for request in r.requests)
    assert fleet.replicas.counts.turns_continued >= SIZE and max(contexts.values()) == 1


def test_lost_replica_comes_back_with_the_latest_version(undisturbed: dict[str, Any]) -> None:
    made = replicas()
    fresh = FakeReplica(made[0].scripts, token_s=0.05)
    tries = 0

    async def restart(index: int) -> FakeReplica:
        nonlocal tries
        tries += index == 0
        await asyncio.sleep(0.5)
        if index != 0 or tries == 1:
            raise InferenceError("server_not_ready", "not yet", retryable=True)
        return fresh

    async def meanwhile(fleet: Fleet) -> None:
        await asyncio.sleep(0.2)
        made[0].kill()
        await asyncio.sleep(0.3)
        await fleet.publish(7)
        await asyncio.sleep(4.0)
        assert fleet.replicas.num_up == 3
        made[1].kill()

    groups, fleet = fly(made, meanwhile=meanwhile, restart=restart, limits=FleetLimits(failures=1))
    assert essence(groups) == undisturbed
    assert tries == 2 and fleet.replicas.counts.replicas_back == 1 and fleet.replicas.num_up == 2
    assert fresh.published == [7] and fresh.requests


def test_version_not_taken_takes_the_replica_out(undisturbed: dict[str, Any]) -> None:
    made = replicas()
    made[2].publish_error = InferenceError("http_500", "no room", retryable=True)

    async def meanwhile(fleet: Fleet) -> None:
        await asyncio.sleep(1.0)
        await fleet.publish(1)

    groups, fleet = fly(made, meanwhile=meanwhile)
    assert essence(groups) == undisturbed
    assert (fleet.replicas.num_up, fleet.version) == (2, 1) and made[0].published == made[1].published == [1]
    versions = {s.version for g in groups for t in g.trajectories for s in t.version_spans}
    assert versions == {0, 1}


@on_virtual_time
async def test_versions_only_rise_and_none_is_lost_on_all() -> None:
    made = replicas(2)

    async with Fleet(made, policy=make_policy("static")) as fleet:
        await fleet.publish(3)
        with pytest.raises(ValueError, match="version 3 does not follow 3"):
            await fleet.publish(3)
        for replica in made:
            replica.kill()
        with pytest.raises(InferenceError, match="publish_failed: no replica took version 4"):
            await fleet.publish(4)
        assert fleet.replicas.num_up == 0


def test_last_replica_lost_fails_what_waits_and_reaches_no_baseline() -> None:
    made = replicas(1)

    async def meanwhile(fleet: Fleet) -> None:
        await asyncio.sleep(1.0)
        made[0].kill()

    groups, _ = fly(made, meanwhile=meanwhile)
    everyone = [t for g in groups for t in g.trajectories]
    lost = [t for t in everyone if isinstance(t.outcome, Failed)]
    assert lost and {t.outcome.kind for t in lost if isinstance(t.outcome, Failed)} == {"no_replica"}
    for group in groups:
        assert all(isinstance(t.outcome, Scored) for t in group.scored)
        assert len(group.scored) == sum(not isinstance(t.outcome, Failed) for t in group.trajectories)


def test_turn_that_kills_each_replica_that_it_meets_is_not_passed_on_for_ever() -> None:
    scripts = Scripts(turns_of)

    class Mortal(FakeReplica):
        async def generate(self, ids: list[int], **rest: Any) -> Generation:
            if rest["request_id"] == "s0/t1/0":
                self.kill()
            return await super().generate(ids, **rest)

    made: list[FakeReplica] = [Mortal(scripts, token_s=0.05) for _ in range(6)]
    groups, fleet = fly(made, limits=FleetLimits(max_lost=3))
    failed = [t for g in groups for t in g.trajectories if isinstance(t.outcome, Failed)]
    assert [str(t.key) for t in failed] == ["s0/t1/0"] and fleet.replicas.num_up == 3


def test_who_waits_for_a_first_grant_has_no_deadline_and_who_waits_for_a_later_one_has() -> None:
    """One replica, room for one at a time. Siblings 0 and 3 answer in one turn, the others call first."""
    made = replicas(1, kv_tokens=4400, token_s=1.0)
    groups, _ = fly(made, policy="static", timeout_s=20.0, max_running=1)
    for trajectory in (t for g in groups for t in g.trajectories):
        outcome = trajectory.outcome
        if trajectory.key.sibling % 3 == 0:
            assert isinstance(outcome, Scored)
        else:
            assert isinstance(outcome, Failed) and outcome.kind == "trajectory_timeout"


@on_virtual_time
async def test_too_large_is_refused_at_once() -> None:
    async with Fleet(replicas(2, kv_tokens=400), policy=make_policy("predictive")) as fleet:
        with pytest.raises(InferenceError, match="too_long: 10 \\+ 500 tokens exceed the KV") as caught:
            await ask(fleet, PROMPT, "s0/a/0")
        assert not caught.value.retryable and not fleet.scheduler.state.trajectories


@on_virtual_time
async def test_abort_answers_with_what_there_is() -> None:
    made = replicas(1, kv_tokens=900, token_s=1.0)

    async with Fleet(made, policy=make_policy("static", max_running=1)) as fleet:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(ask(fleet, PROMPT, "s0/a/0"))
            second = tasks.create_task(ask(fleet, PROMPT, "s0/a/1"))
            await asyncio.sleep(3.5)
            assert (fleet.load().running, fleet.load().waiting) == (1, 1)
            await fleet.abort("s0/a/1")
            await fleet.abort("s0/a/0")
        assert [len(t.result().ids) for t in (first, second)] == [3, 0]
        assert {t.result().finish for t in (first, second)} == {StopReason.aborted}
        fleet.release("s0/a/0")
        assert fleet.load().used == 0 and not fleet.scheduler.state.trajectories


def test_error_of_the_body_stays_itself_and_a_bug_in_a_task_is_raised() -> None:
    class Broken(FakeReplica):
        def load(self) -> Any:
            if asyncio.get_running_loop().time() > 2.0:
                raise KeyError("a bug")
            return super().load()

    async def main(replica: FakeReplica) -> None:
        async with Fleet([replica], policy=make_policy("static")):
            await asyncio.sleep(1.5)
            if not isinstance(replica, Broken):
                raise OSError("mine")
            await asyncio.sleep(1e6)

    with pytest.raises(OSError, match="mine"):
        run_virtual(main(replicas(1)[0]))
    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(main(Broken(Scripts(turns_of))))
    assert caught.group_contains(KeyError, match="a bug")


@on_virtual_time
async def test_bytes_held_are_those_of_all_replicas() -> None:
    class Holding(FakeReplica):
        def load(self) -> Any:
            return dataclasses.replace(super().load(), held_bytes=7)

    made = [Holding(Scripts(turns_of)) for _ in range(2)]
    async with Fleet(made, policy=make_policy("static")) as fleet:
        assert fleet.load().held_bytes == 14


@on_virtual_time
async def test_a_trajectory_has_one_request_and_a_cancelled_one_leaves_nothing_behind() -> None:
    async with Fleet(replicas(1, token_s=1.0), policy=make_policy("predictive")) as fleet:
        running = asyncio.create_task(ask(fleet, PROMPT))
        await asyncio.sleep(1.0)
        with pytest.raises(InferenceError, match="has a request already"):
            await ask(fleet, PROMPT)
        running.cancel()
        await asyncio.wait([running])
        assert fleet.load() == type(fleet.load())(total=1 << 20, used=0, running=0, waiting=0)
        assert (await ask(fleet, PROMPT)).finish is StopReason.stop


def test_trajectories_are_those_of_a_single_engine(undisturbed: dict[str, Any]) -> None:
    """The fleet adds nothing: one replica without it gives the same."""
    alone = run_virtual(rollout(replicas(1)[0]))
    found: list[Trajectory] = [t for g in alone for t in g.trajectories]
    assert len(found) == GROUPS * SIZE and essence(alone) == undisturbed


class Suspendable(FakeReplica):
    """One that can be stopped on purpose."""

    async def suspend(self) -> None:
        self.cut_all()
        self._fault = "dead"
        self._kv.clear()
        self._used = 0

    async def resume(self, version: int, source: Any) -> None:
        if self.publish_error is not None:
            raise self.publish_error
        self._fault, self.version = None, version
        self.published.append(version)


def suspendables(count: int) -> list[FakeReplica]:
    scripts = Scripts(turns_of)
    return [Suspendable(scripts, token_s=0.05) for _ in range(count)]


def test_a_fleet_that_is_stopped_on_purpose_goes_on_where_it_was(undisturbed: dict[str, Any]) -> None:
    """Not one token is written twice, nothing counts as a failure, and nothing runs meanwhile."""
    made = suspendables(NUM_REPLICAS)

    async def meanwhile(fleet: Fleet) -> None:
        for version in (1, 2, 3):
            await asyncio.sleep(1.0)
            await fleet.suspend()
            asked = [len(replica.requests) for replica in made]
            await asyncio.sleep(50.0)
            assert [len(replica.requests) for replica in made] == asked and fleet.replicas.num_up == 0
            await fleet.resume(version, None)

    groups, fleet = fly(made, meanwhile=meanwhile, limits=FleetLimits(max_attempts=2))
    assert essence(groups) == undisturbed
    versions = {s.version for g in groups for t in g.trajectories for s in t.version_spans}
    assert versions == {0, 1, 2, 3}
    assert fleet.replicas.counts.replicas_lost == 0 and fleet.replicas.num_up == NUM_REPLICAS


def test_one_that_does_not_start_again_comes_back_later(undisturbed: dict[str, Any]) -> None:
    made = suspendables(2)
    made[1].publish_error = InferenceError("server_died", "no room", retryable=True)

    async def restart(index: int) -> FakeReplica:
        assert index == 1
        made[1].publish_error = made[1]._fault = None
        return made[1]

    async def meanwhile(fleet: Fleet) -> None:
        await asyncio.sleep(1.0)
        await fleet.suspend()
        await fleet.resume(5, None)
        assert fleet.replicas.counts.publishes_failed == 1

    groups, fleet = fly(made, meanwhile=meanwhile, restart=restart)
    assert essence(groups) == undisturbed
    assert fleet.replicas.num_up == 2 and made[1].published == [5] and fleet.replicas.counts.replicas_back == 1


LIVE, KEPT = LiveWeights([]), LiveWeights([])


@on_virtual_time
async def test_what_comes_back_late_takes_what_was_kept() -> None:
    """`source` may be gone by then: the learner has learned on."""
    taken: list[tuple[str, Any]] = []

    class Noting(FakeReplica):
        async def publish(self, version: int, source: Any = None) -> None:
            await super().publish(version, source)
            taken.append(("one", source))

    async def send_to_all(some: Any, version: int, source: Any) -> list[InferenceError | None]:
        taken.append((f"{len(some)} at once", source))
        return [None, InferenceError("http_500", "no", retryable=True)]

    made = [Noting(Scripts(turns_of)) for _ in range(2)]

    async def restart(index: int) -> FakeReplica:
        return made[index]

    async with Fleet(made, policy=make_policy("static"), send_to_all=send_to_all, restart=restart) as fleet:
        await fleet.publish(1, LIVE, keep=KEPT)
        assert await fleet.wait_up(1.0)
        await asyncio.sleep(1.0)
        assert fleet.replicas.num_up == 2
    assert taken == [("2 at once", LIVE), ("one", KEPT)]


@on_virtual_time
async def test_busy_and_starved_are_of_the_turns() -> None:
    """One replica with room for one turn: while two ask, one waits; then nobody does."""
    made = [FakeReplica(Scripts(lambda name: [[7] * 20]), kv_tokens=40, token_s=0.1)]

    async def turn(fleet: Fleet, name: str) -> None:
        await asking.ask(fleet, [1] * 10, name, 20)
        fleet.release(name)

    loop = asyncio.get_running_loop()
    fleet = Fleet(made, policy=make_policy("static", max_running=1))
    fleet._busy = BusyClock(loop.time)
    async with fleet:
        await asyncio.sleep(5.0)
        await asyncio.gather(turn(fleet, "g/0"), turn(fleet, "g/1"))
        await asyncio.sleep(5.0)
        assert fleet.busy_s == pytest.approx(4.0) and fleet.starved_s == pytest.approx(2.0)
