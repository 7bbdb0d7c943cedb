"""The scheduler's ledger under any sequence of events, for every policy."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocstar.engine.fleet.scheduler import ScheduleError, Scheduler
from rocstar.engine.scheduling.events import (
    Command,
    Drop,
    Event,
    Grant,
    Left,
    LoadSeen,
    Preempted,
    Refuse,
    ReplicaDown,
    ReplicaUp,
    Submitted,
    TurnEnded,
    TurnReady,
)
from rocstar.engine.scheduling.policies import POLICIES, make_policy
from rocstar.engine.scheduling.schedule_state import Phase
from tests.engine.scheduling.clockwork import begin
from tests.fakes.invariants import check_schedule

POOLS = (900, 1500, 400)
"""Too small for all, so that everything has to wait at times."""


class Host(RuleBasedStateMachine):
    """A host that knows what it was told, and believes the scheduler nothing."""

    @initialize(policy=st.sampled_from(sorted(POLICIES)))
    def begin(self, policy: str) -> None:
        self.scheduler = Scheduler(make_policy(policy))
        self.phase: dict[str, str] = {}
        self.context: dict[str, int] = {}
        self.limit: dict[str, int] = {}
        self.home: dict[str, int | None] = {}
        self.up: set[int] = set()
        self.known: set[int] = set()
        self.count = 0
        self.bring_up(0)

    def tell(self, event: Event) -> None:
        for command in self.scheduler.handle(event):
            self.obey(command)

    def obey(self, command: Command) -> None:
        match command:
            case Grant():
                assert self.phase[command.traj] == "ready", "granted what is not ready, or twice"
                assert command.replica in self.up, "granted to a replica that is down"
                self.phase[command.traj], self.home[command.traj] = "running", command.replica
            case Drop():
                assert self.phase[command.traj] in {"tool", "ready"}
                assert self.home[command.traj] == command.replica
                self.home[command.traj] = None
            case Refuse():
                largest = max(POOLS[r] for r in self.known)
                assert self.context[command.traj] + self.limit[command.traj] > largest
                self.forget(command.traj)

    def forget(self, traj: str) -> None:
        del self.phase[traj], self.context[traj], self.home[traj], self.limit[traj]

    def pick(self, data: st.DataObject, *phases: str) -> str | None:
        found = sorted(traj for traj, phase in self.phase.items() if phase in phases)
        return data.draw(st.sampled_from(found)) if found else None

    @rule(group=st.integers(0, 4), prompt=st.integers(1, 60), limit=st.integers(1, 500))
    def submit(self, group: int, prompt: int, limit: int) -> None:
        traj = f"t{self.count}"
        self.count += 1
        self.phase[traj], self.context[traj], self.limit[traj], self.home[traj] = "new", prompt, limit, None
        self.tell(Submitted(traj=traj, group=f"g{group}", stage="s", prompt_tokens=prompt, max_tokens=limit))

    @rule(data=st.data(), tool=st.integers(0, 20))
    def ready(self, data: st.DataObject, tool: int) -> None:
        traj = self.pick(data, "new", "tool")
        if traj is not None and self.limit[traj] > tool + 1:
            if self.phase[traj] == "tool":
                self.context[traj] += tool
                self.limit[traj] -= tool
            self.phase[traj] = "ready"
            self.tell(TurnReady(traj=traj, context_tokens=self.context[traj]))

    @rule(data=st.data(), share=st.floats(0, 1))
    def end_turn(self, data: st.DataObject, share: float) -> None:
        traj = self.pick(data, "running")
        if traj is not None:
            new = int(share * self.limit[traj])
            self.phase[traj] = "tool"
            self.context[traj] += new
            self.limit[traj] -= new
            self.tell(TurnEnded(traj=traj, new_tokens=new))

    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        traj = self.pick(data, "running")
        if traj is not None:
            self.tell(Preempted(traj=traj, context_tokens=self.context[traj]))

    @rule(data=st.data(), finished=st.booleans())
    def leave(self, data: st.DataObject, finished: bool) -> None:
        traj = self.pick(data, "new", "ready", "running", "tool")
        if traj is not None:
            self.forget(traj)
            self.tell(Left(traj=traj, finished=finished))

    @rule(replica=st.integers(0, len(POOLS) - 1))
    def replica_up(self, replica: int) -> None:
        self.bring_up(replica)

    def bring_up(self, replica: int) -> None:
        if replica not in self.up:
            self.up.add(replica)
            self.known.add(replica)
            self.tell(ReplicaUp(replica=replica, kv_tokens=POOLS[replica]))

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def replica_down(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(sorted(self.up)))
        self.up.discard(replica)
        back = [traj for traj, phase in self.phase.items() if phase == "running" and self.home[traj] == replica]
        for traj in [traj for traj, home in self.home.items() if home == replica]:
            self.home[traj] = None
        for traj in back:
            self.phase[traj] = "tool"
        self.tell(ReplicaDown(replica=replica))
        for traj in back:
            if self.limit[traj] > 1:
                self.phase[traj] = "ready"
                self.tell(TurnReady(traj=traj, context_tokens=self.context[traj]))

    @rule(data=st.data(), used=st.integers(0, 2000), waiting=st.integers(0, 3))
    def load_seen(self, data: st.DataObject, used: int, waiting: int) -> None:
        if self.up:
            replica = data.draw(st.sampled_from(sorted(self.up)))
            self.tell(LoadSeen(replica=replica, used_tokens=used, running=1, waiting=waiting))

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        check_schedule(self.scheduler)
        now = self.scheduler.state
        assert {t: v.phase.value for t, v in now.trajectories.items()} == self.phase
        assert {t: v.home for t, v in now.trajectories.items()} == self.home
        assert {t: v.context_tokens for t, v in now.trajectories.items()} == self.context
        assert set(now.replicas) == self.up
        for view in now.replicas.values():
            living = [t for t, home in self.home.items() if home == view.replica]
            assert set(view.trajectories) == set(living)
            assert view.resident_tokens == sum(self.context[t] for t in living)
            assert view.running == sum(self.phase[t] == "running" for t in living)

    @invariant()
    def no_standstill(self) -> None:
        if hasattr(self, "scheduler") and "running" not in self.phase.values():
            for traj, phase in self.phase.items():
                fits = any(POOLS[replica] > self.context[traj] for replica in self.up)
                assert phase != "ready" or not fits, "nothing runs, and something could"


Host.TestCase.settings = settings(
    max_examples=120, stateful_step_count=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestHost = Host.TestCase


SUBMITTED = Submitted(traj="a", group="g", stage="s", prompt_tokens=10, max_tokens=100)
READY, ENDED = TurnReady(traj="a", context_tokens=10), TurnEnded(traj="a", new_tokens=5)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([READY], "'a' is not known"),
        ([SUBMITTED, SUBMITTED], "was submitted already"),
        ([SUBMITTED, ENDED], "'a' is new, not running"),
        ([SUBMITTED, READY, READY], "'a' is running, not new or tool"),
        ([SUBMITTED, READY, ENDED, TurnReady(traj="a", context_tokens=14)], "shrank from 15 to 14 tokens"),
        ([SUBMITTED, READY, Left(traj="a"), ENDED], "'a' is not known"),
        ([Preempted(traj="a", context_tokens=3)], "'a' is not known"),
        ([ReplicaUp(replica=0, kv_tokens=5)], "replica 0: up already"),
        ([ReplicaUp(replica=1, kv_tokens=0)], "or 0 KV tokens"),
        ([ReplicaDown(replica=1)], "replica 1 is not up"),
        ([LoadSeen(replica=3, used_tokens=0, running=0, waiting=0)], "replica 3 is not up"),
        ([replace(SUBMITTED, max_tokens=0)], "10 \\+ 0 tokens"),
    ],
)
def test_event_that_cannot_follow_is_an_error(events: list[Event], says: str) -> None:
    made = begin("round_robin", (1000,))
    for event in events[:-1]:
        made.handle(event)
    with pytest.raises(ScheduleError, match=says):
        made.handle(events[-1])


class Puppet:
    """A policy that yields what it is told to, whatever that is."""

    name = "puppet"

    def __init__(self, *commands: Command) -> None:
        self.commands = list(commands)

    def decide(self, event: Event, subject: object, now: object) -> list[Command]:
        return self.commands if isinstance(event, TurnReady) else []


@pytest.mark.parametrize(
    ("commands", "says"),
    [
        ([Grant(traj="a", replica=7)], "replica 7 is not up"),
        ([Grant(traj="a", replica=0), Grant(traj="a", replica=0)], "'a' is running, not ready"),
        ([Grant(traj="b", replica=0)], "'b' is not known"),
        ([Drop(traj="a", replica=0)], "'a' lives at None, not at 0"),
        ([Refuse(traj="a", detail="")], "a policy may not refuse"),
    ],
)
def test_command_that_breaks_the_ledger_is_an_error(commands: list[Command], says: str) -> None:
    made = Scheduler(Puppet(*commands))
    made.handle(ReplicaUp(replica=0, kv_tokens=1000))
    made.handle(SUBMITTED)
    with pytest.raises(ScheduleError, match=says):
        made.handle(READY)


@pytest.mark.parametrize("name", POLICIES)
def test_larger_than_every_pool_is_refused_and_the_largest_that_fits_is_not(name: str) -> None:
    made = begin(name, (500, 1000))
    assert made.handle(replace(SUBMITTED, max_tokens=990)) == []
    assert made.handle(READY) == [Grant(traj="a", replica=1)] or name != "predictive"
    check_schedule(made)
    refused = made.handle(Submitted(traj="b", group="g", stage="s", prompt_tokens=10, max_tokens=991))
    assert [type(command) for command in refused] == [Refuse]
    assert "b" not in made.state.trajectories


def test_what_fits_a_replica_that_is_down_waits_for_it() -> None:
    made = begin("predictive", (500, 1000))
    made.handle(replace(SUBMITTED, prompt_tokens=600))
    made.handle(ReplicaDown(replica=1))
    assert made.handle(TurnReady(traj="a", context_tokens=600)) == []
    assert made.handle(ReplicaUp(replica=1, kv_tokens=1000)) == [Grant(traj="a", replica=1)]


def test_standstill_is_broken_for_a_policy_that_never_grants() -> None:
    made = Scheduler(Puppet())
    made.handle(ReplicaUp(replica=0, kv_tokens=1000))
    for traj in "ab":
        made.handle(replace(SUBMITTED, traj=traj))
    assert made.handle(replace(READY, traj="a")) == [Grant(traj="a", replica=0)]
    assert made.handle(replace(READY, traj="b")) == []
    assert made.handle(replace(ENDED, traj="a")) == [Grant(traj="b", replica=0)]


def test_grant_elsewhere_takes_the_kv_along() -> None:
    made = Scheduler(Puppet(Grant(traj="a", replica=1)))
    for replica in (0, 1):
        made.handle(ReplicaUp(replica=replica, kv_tokens=1000))
    made.handle(SUBMITTED)
    made.handle(READY)
    made.handle(ENDED)
    replicas = made.state.replicas
    assert [r.resident_tokens for r in replicas.values()] == [0, 15]
    assert made.state.trajectories["a"].phase is Phase.tool
