"""Recorded streams: what hosts told the scheduler under our policy, and what it commanded after each event.

    python tests/engine/scheduling/decision_streams.py    # records anew: only where decisions shall change

A replay tells a fresh scheduler the same events, whatever it commands. One stream per case: pools that are
tight and not, all tunables off their defaults, two stages at once with replicas that fail.
"""

import json
import lzma
import random
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from rocstar.engine.fleet.scheduler import ScheduleError, Scheduler
from rocstar.engine.scheduling import events
from rocstar.engine.scheduling.events import (
    Command,
    Event,
    Grant,
    Left,
    Preempted,
    ReplicaDown,
    ReplicaUp,
    Submitted,
    TurnEnded,
    TurnReady,
)
from rocstar.engine.scheduling.policies import make_policy
from rocstar.engine.sim.cost import MI300X_14B, Cluster, ReplicaModel
from rocstar.engine.sim.flight import Flight
from rocstar.engine.sim.workload import earlier_step, generate

FILE = Path(__file__).with_name("decisions.json.xz")
SIBLINGS = 16
Told = tuple[Event, list[Command]]


@dataclass(slots=True)
class Case:
    """A host and how its stream comes about; `workload` is None for the one whose replicas fail."""

    workload: str | None
    tasks: int
    replicas: int
    kv_tokens: int
    tunables: dict[str, Any] = field(default_factory=dict)


CASES = {
    "paper/tight": Case("paper", 16, 4, 60_000),
    "tool-heavy/tight": Case("tool-heavy", 8, 3, 50_000),
    "paper/normal": Case("paper", 16, 4, 150_000),
    "short-tail/tuned": Case(
        "short-tail",
        8,
        2,
        45_000,
        {
            "safety": 1.0,
            "buffer": 0.0,
            "stagger": 0.5,
            "longest_first": False,
            "pause_share": 0.05,
            "pause_below": 0.9,
            "hold_above": 1.2,
            "block": 4,
            "backfill": 1.0,
            "move_share": 0.05,
        },
    ),
    "failing": Case(None, 24, 3, 6_000),
}


@dataclass(slots=True)
class Recorder:
    """A scheduler that writes down what it is told and what it answers."""

    scheduler: Scheduler
    log: list[Told] = field(default_factory=list)

    def handle(self, event: Event) -> list[Command]:
        commands = self.scheduler.handle(event)
        self.log.append((event, commands))
        return commands


def record(case: Case) -> list[Told]:
    recorder = Recorder(Scheduler(make_policy("predictive", **case.tunables)))
    if case.workload is None:
        Failing(recorder, case).run()
        return recorder.log
    on = Cluster(
        model=ReplicaModel(kv_tokens=case.kv_tokens, cost=MI300X_14B),
        replicas=case.replicas,
        replicas_per_node=case.replicas,
    )
    before = earlier_step(case.workload, case.tasks, SIBLINGS, 1)
    Flight(workload=before, cluster=on, scheduler=recorder, load_period_s=20.0).run()
    step = generate(case.workload, tasks=case.tasks, siblings=SIBLINGS, seed=1)
    Flight(workload=step, cluster=on, scheduler=recorder, load_period_s=20.0, goes_on=True).run()
    return recorder.log


class Failing:
    """A host in steps of one token per running turn. Replicas go down and come back, turns are
    retracted, trajectories are cancelled, and two stages of different limits run side by side."""

    LIMITS, TOOL_STEPS = (400, 1000), 5

    def __init__(self, recorder: Recorder, case: Case) -> None:
        self.recorder, self.case, self.rng = recorder, case, random.Random(5)
        self.turns: dict[str, list[int]] = {}
        self.context: dict[str, int] = {}
        self.running: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.wakes: dict[str, int] = {}

    def tell(self, event: Event) -> None:
        for command in self.recorder.handle(event):
            if isinstance(command, Grant):
                self.running[command.traj] = command.replica

    def run(self) -> None:
        up = set(range(self.case.replicas))
        for replica in up:
            self.tell(ReplicaUp(replica=replica, kv_tokens=self.case.kv_tokens))
        for task in range(self.case.tasks):
            self.submit(task)
        step = 0
        while self.wakes or self.running:
            for traj in [traj for traj, at in self.wakes.items() if at <= step]:
                del self.wakes[traj]
                self.tell(TurnReady(traj=traj, context_tokens=self.context[traj]))
            step += 1
            for traj in list(self.running):
                self.written[traj] += 1
                if self.written[traj] == self.turns[traj][0]:
                    self.end_turn(traj, step)
            if step % 40 == 0 and self.running:
                self.preempt(self.rng.choice(sorted(self.running)))
            if step % 150 == 0 and len(up) == self.case.replicas:
                up.discard(down := self.rng.randrange(self.case.replicas))
                self.down(down)
            elif step % 150 == 100 and len(up) < self.case.replicas:
                (back,) = set(range(self.case.replicas)) - up
                up.add(back)
                self.tell(ReplicaUp(replica=back, kv_tokens=self.case.kv_tokens))

    def submit(self, task: int) -> None:
        stage, limit = task % 2, self.LIMITS[task % 2]
        hard, prompt = self.rng.uniform(0.3, 1.5), self.rng.randint(20, 90)
        for sibling in range(SIBLINGS // 2):
            traj = f"{task}/{sibling}"
            turns = [max(1, int(hard * limit / 4 * self.rng.random())) for _ in range(self.rng.randint(1, 4))]
            self.turns[traj], self.context[traj], self.written[traj] = turns, prompt, 0
            self.wakes[traj] = 0
            self.tell(
                Submitted(traj=traj, group=f"{task}", stage=f"{stage}", prompt_tokens=prompt, max_tokens=2 * limit)
            )

    def end_turn(self, traj: str, step: int) -> None:
        del self.running[traj]
        new = self.turns[traj].pop(0)
        self.context[traj] += new
        self.written[traj] = 0
        self.tell(TurnEnded(traj=traj, new_tokens=new))
        cancelled = self.rng.random() < 0.05
        if cancelled or not self.turns[traj]:
            self.tell(Left(traj=traj, finished=not cancelled))
        else:
            self.context[traj] += self.rng.randint(0, 8)
            self.wakes[traj] = step + self.TOOL_STEPS

    def preempt(self, traj: str) -> None:
        self.tell(Preempted(traj=traj, context_tokens=self.context[traj] + self.written[traj]))

    def down(self, replica: int) -> None:
        lost = [traj for traj, at in self.running.items() if at == replica]
        for traj in lost:
            del self.running[traj]
            self.context[traj] += self.written[traj]
            self.turns[traj][0] -= self.written[traj]
            self.written[traj] = 0
        self.tell(ReplicaDown(replica=replica))
        for traj in lost:
            self.tell(TurnReady(traj=traj, context_tokens=self.context[traj]))


@dataclass(slots=True)
class Difference:
    """The first event after which a replay commands something else."""

    number: int
    event: Event
    recorded: list[Command]
    now: list[Command] | ScheduleError


def replay(log: list[Told], **tunables: Any) -> Difference | None:
    scheduler = Scheduler(make_policy("predictive", **tunables))
    for number, (event, recorded) in enumerate(log):
        try:
            now = scheduler.handle(event)
        except ScheduleError as error:
            return Difference(number, event, recorded, error)
        if now != recorded:
            return Difference(number, event, recorded, now)
    return None


def save(logs: dict[str, list[Told]]) -> None:
    rows = {name: [[_row(event), *map(_row, commands)] for event, commands in log] for name, log in logs.items()}
    FILE.write_bytes(lzma.compress(json.dumps(rows, separators=(",", ":")).encode(), preset=9))


def load() -> dict[str, list[Told]]:
    rows: dict[str, list[list[list[Any]]]] = json.loads(lzma.decompress(FILE.read_bytes()))
    return {name: list(_told(log)) for name, log in rows.items()}


def _row(item: Event | Command) -> list[Any]:
    return [type(item).__name__, *astuple(item)]


def _told(log: list[list[list[Any]]]) -> Iterator[Told]:
    for event, *commands in log:
        yield _item(event), [_item(command) for command in commands]


def _item(row: list[Any]) -> Any:
    kind = getattr(events, row[0])
    return kind(**dict(zip(kind.__dataclass_fields__, row[1:], strict=True)))


if __name__ == "__main__":
    save({name: record(case) for name, case in CASES.items()})
