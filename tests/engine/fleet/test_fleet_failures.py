"""Replicas that fail everything, something, or one turn alone: who goes down, and who answers instead."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import pytest

from rocstar.engine.fleet.fleet import Fleet, FleetLimits
from rocstar.engine.fleet.replicas import FailureCount
from rocstar.engine.inference.base import Generation, InferenceError, StopReason
from rocstar.engine.scheduling.policies import POLICIES, make_policy
from tests.fakes import asking
from tests.fakes.fake_replica import FakeReplica, Scripts
from tests.fakes.invariants import check_schedule
from tests.fakes.scripted_policy import on_virtual_time, run_virtual

STOP = 2
TURNS = 10
TOKEN_S = 0.05
LIMITS = FleetLimits()


def turns_of(trajectory: str) -> list[list[int]]:
    """Ten turns whose lengths and ids are the trajectory's own."""
    rng = random.Random(trajectory)
    return [[*rng.choices(range(5, 200), k=rng.randrange(1, 40)), STOP] for _ in range(TURNS)]


@dataclass(slots=True, eq=False)
class Failing(FakeReplica):
    """Answers 500 at once to calls for which `fails` is true."""

    fails: Callable[[str], bool] = lambda trajectory: False
    calls: list[tuple[str, bool, float]] = field(default_factory=list)
    """(turn, whether it failed, when), in order."""

    async def generate(self, ids: list[int], *, request_id: str, **rest: Any) -> Generation:
        failed = self.fails(request_id)
        loop = asyncio.get_running_loop()
        self.calls.append((f"{request_id} {len(ids)}", failed, loop.time()))
        if failed:
            self.requests.append((request_id, len(ids)))
            raise InferenceError("http_500", "internal error", retryable=True)
        return await super(Failing, self).generate(ids, request_id=request_id, **rest)

    def break_down(self, *, dead: bool) -> None:
        """From now on nothing is answered, nor what runs."""
        if dead:
            self.kill()
            return
        self.fails = always
        for running in self._running.values():
            running.stop.set_result(InferenceError("http_500", "internal error", retryable=True))

    @property
    def failed(self) -> list[tuple[str, float]]:
        return [(turn, when) for turn, failed, when in self.calls if failed]


def share(percent: int, seed: int = 0) -> Callable[[str], bool]:
    rng = random.Random(seed)
    return lambda trajectory: rng.randrange(100) < percent


def always(trajectory: str) -> bool:
    return True


def replicas(*fails: Callable[[str], bool] | None) -> list[Failing]:
    scripts = Scripts(turns_of)
    return [Failing(scripts, token_s=TOKEN_S, fails=f or (lambda trajectory: False)) for f in fails]


ask = partial(asking.ask, max_new_tokens=50, stop_ids=frozenset({STOP}))


async def trajectory(fleet: Fleet, name: str) -> InferenceError | None:
    """All turns of one, each checked; what it failed for."""
    ids = [1] * 10
    try:
        for expected in turns_of(name):
            got = await ask(fleet, ids, name)
            assert (list(got.ids), got.finish) == (expected, StopReason.stop)
            ids = [*ids, *got.ids, 3, 4]
            await asyncio.sleep(0.2)
    except InferenceError as error:
        return error
    fleet.release(name)
    return None


def fly(
    made: list[Failing],
    num: int,
    *,
    policy: str = "predictive",
    restart: Any = None,
    limits: FleetLimits = LIMITS,
    meanwhile: Callable[[Fleet], Any] | None = None,
) -> tuple[Fleet, list[InferenceError | None]]:
    """`num` trajectories at once."""

    async def main() -> tuple[Fleet, list[InferenceError | None]]:
        async with Fleet(made, policy=make_policy(policy), restart=restart, limits=limits) as fleet:
            names = [f"s0/g{k // 4}/{k}" for k in range(num)]
            async with asyncio.TaskGroup() as tasks:
                if meanwhile is not None:
                    tasks.create_task(meanwhile(fleet))
                ended = await asyncio.gather(*(trajectory(fleet, name) for name in names))
            check_schedule(fleet.scheduler)
            assert fleet.load().used == 0 and not fleet.scheduler.state.trajectories
            return fleet, ended

    return run_virtual(main())


@pytest.mark.parametrize("fault", ["500", "dead"])
@pytest.mark.parametrize("num", [1, 24, 200])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_replica_that_fails_everything_is_down_in_no_time(policy: str, num: int, fault: str) -> None:
    """What it was working on, and all that comes: it is down at that moment, for a turn that is alone too."""
    made = replicas(None, None)

    async def meanwhile(fleet: Fleet) -> None:
        await asyncio.sleep(1.01)
        bad = max(made, key=lambda replica: replica.load().running)
        assert bad.load().running
        bad.break_down(dead=fault == "dead")
        for _ in range(100):
            await asyncio.sleep(0)
        assert fleet.replicas.num_up == 1, "and no time has passed"

    fleet, ended = fly(made, num, policy=policy, meanwhile=meanwhile)
    assert ended == [None] * num and fleet.replicas.counts.replicas_lost == 1
    assert all(len(replica.failed) <= LIMITS.failures + num for replica in made)


@pytest.mark.parametrize("num", [24, 200])
@pytest.mark.parametrize("policy", POLICIES)
def test_one_that_fails_what_comes_but_answers_what_it_has_is_down_when_that_is_answered(
    policy: str, num: int
) -> None:
    made = replicas(None, None)

    async def meanwhile(fleet: Fleet) -> None:
        await asyncio.sleep(1.01)
        bad = max(made, key=lambda replica: replica.load().running)
        bad.fails = always
        await asyncio.sleep(40 * TOKEN_S)  # the longest turn
        assert not bad.load().running and fleet.replicas.num_up == 1

    fleet, ended = fly(made, num, policy=policy, meanwhile=meanwhile)
    assert ended == [None] * num and fleet.replicas.counts.replicas_lost == 1


@pytest.mark.parametrize("num", [1, 24, 200])
def test_the_only_replica_that_fails_everything_comes_back_before_a_turn_is_given_up(num: int) -> None:
    made = replicas(always)
    back = replicas(None)

    async def restart(index: int) -> FakeReplica:
        return back[0]

    fleet, ended = fly(made, num, restart=restart)
    assert ended == [None] * num and fleet.replicas.counts.replicas_back == 1
    assert LIMITS.failures <= len(made[0].failed) <= LIMITS.failures + num


@pytest.mark.parametrize("policy", POLICIES)
def test_a_replica_that_fails_every_fourth_call_stays(policy: str) -> None:
    """2,000 turns of 200 trajectories. A failed turn is answered by the other replica at once."""
    made = replicas(share(25), None)
    fleet, ended = fly(made, 200, policy=policy)
    assert ended == [None] * 200 and fleet.replicas.counts.replicas_lost == 0
    failures = Counter(turn for turn, _ in made[0].failed)
    rows = [len(list(row)) for failed, row in groupby(failed for _, failed, _ in made[0].calls) if failed]
    assert sum(failures.values()) > 150 and max(rows) >= 3, "three in a row would take it down"
    assert max(failures.values()) == 1, "never on the same replica again while the other is up"
    assert fleet.replicas.counts.turns_continued == sum(failures.values())


def test_the_only_replica_stays_if_it_fails_every_fourth_call() -> None:
    made = replicas(share(25))
    fleet, ended = fly(made, 200)
    assert ended == [None] * 200 and fleet.replicas.counts.replicas_lost == 0 and len(made[0].failed) > 500


@pytest.mark.parametrize("num", [1, 3, 24])
def test_all_replicas_may_fail_every_fourth_call(num: int) -> None:
    made = replicas(*(share(25, seed) for seed in range(3)))
    fleet, ended = fly(made, num)
    assert ended == [None] * num and fleet.replicas.counts.replicas_lost == 0


@pytest.mark.parametrize("percent", [60, 75])
def test_a_replica_that_fails_most_calls_fails_no_trajectory(percent: int) -> None:
    made = replicas(share(percent), None, None)
    _, ended = fly(made, 60)
    assert ended == [None] * 60
    assert max(Counter(turn for turn, _ in made[0].failed).values()) <= LIMITS.failures


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_turn_that_fails_everywhere_takes_none_down_that_answers_others(count: int) -> None:
    """It is given up after as many tries on each; with one replica there is nothing to compare it with."""
    poison = "s0/g3/13"
    made = replicas(*[lambda trajectory: trajectory == poison] * count)
    fleet, ended = fly(made, 24, limits=FleetLimits(failures=12 if count > 1 else 1000))
    assert [error.kind for error in ended if error is not None] == ["replicas_failed"]
    assert fleet.replicas.counts.replicas_lost == 0
    assert [len(replica.failed) for replica in made] == [LIMITS.max_attempts // count] * count


def test_a_guest_goes_home_again_and_leaves_nothing_behind() -> None:
    """The KV stays at home: its next turn is asked there."""
    once = iter([True])
    made = replicas(lambda trajectory: trajectory == "s0/g0/0" and next(once, False), None)
    fleet, ended = fly(made, 8, policy="static")
    assert ended == [None] * 8 and fleet.replicas.counts.turns_continued == 1
    asked = [[len_ids for name, len_ids in replica.requests if name == "s0/g0/0"] for replica in made]
    assert (len(asked[0]), asked[0][0], asked[1]) == (TURNS, 10, [10])
    assert made[1].released.count("s0/g0/0") == 1


@on_virtual_time
async def test_an_abort_reaches_the_guest() -> None:
    made = replicas(lambda trajectory: trajectory == "s0/a/1", None)

    async with Fleet(made, policy=make_policy("static")) as fleet:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(fleet, [1] * 10, "s0/a/0"))
            guest = tasks.create_task(ask(fleet, [1] * 10, "s0/a/1"))
            await asyncio.sleep(0.12)
            assert made[1].requests == [("s0/a/1", 10)]
            await fleet.abort("s0/a/1")
        assert (guest.result().finish, len(guest.result().ids)) == (StopReason.aborted, 2)
        for name in ("s0/a/0", "s0/a/1"):
            fleet.release(name)
        assert fleet.load().used == 0 and not fleet.scheduler.state.trajectories


@pytest.mark.parametrize("lost", [0, 1])
@on_virtual_time
async def test_a_guest_whose_host_or_home_goes_down_goes_on(lost: int) -> None:
    made = replicas(lambda trajectory: trajectory == "s0/a/1" and not made[1].requests, None, None)
    async with Fleet(made, policy=make_policy("static")) as fleet:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(fleet, [1] * 10, "s0/a/0"))
            guest = tasks.create_task(ask(fleet, [1] * 10, "s0/a/1"))
            await asyncio.sleep(0.12)
            assert made[1].requests == [("s0/a/1", 10)]
            made[lost].kill()
    got = guest.result()
    assert list(got.ids) == turns_of("s0/a/1")[0] and got.finish is StopReason.stop


# ---- the rule alone ----


def test_failures_are_failures_in_a_row_of_turns_or_of_all_that_there_are() -> None:
    failures = FailureCount()
    assert [failures.failed(turn, ["d"], is_only=False) for turn in "aabab"] == [1, 1, 2, 2, 2]
    assert failures.failed("d", [], is_only=False) == 3
    assert [failures.failed("a", ["b"], is_only=False) for _ in range(3)] == [4, 5, 6]
    failures.answered()
    assert failures.failed("a", ["b"], is_only=False) == 1
    assert not failures.is_row(["a", "b"]) and failures.is_row(["a"]) and failures.is_row([])


def test_without_another_replica_every_failure_counts() -> None:
    failures = FailureCount()
    assert [failures.failed("a", ["b"], is_only=True) for _ in range(3)] == [1, 2, 3]
