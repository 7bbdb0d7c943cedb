"""A host in steps, to see what a policy decides and that it cannot see the future."""

import dataclasses
import random
from typing import Any

from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.scheduling.events import (
    Command,
    Event,
    Grant,
    Left,
    LoadSeen,
    ReplicaUp,
    Submitted,
    TurnEnded,
    TurnReady,
)
from rocstar.engine.scheduling.policies import make_policy

LIMIT, PROMPT, TOOL_STEPS = 400, 20, 3


@dataclasses.dataclass
class Clockwork:
    """A host in steps: every running turn writes one token per step. Records commands with their step."""

    scheduler: Scheduler
    turns_of: dict[str, list[int]]
    log: list[tuple[int, Command]] = dataclasses.field(default_factory=list)
    step: int = 0

    def __post_init__(self) -> None:
        self.context = dict.fromkeys(self.turns_of, PROMPT)
        self.number = dict.fromkeys(self.turns_of, 0)
        self.left = dict.fromkeys(self.turns_of, 0)
        self.wakes: dict[str, int] = {}
        self.running: dict[str, int] = {}

    def tell(self, event: Event) -> None:
        for command in self.scheduler.handle(event):
            self.log.append((self.step, command))
            if isinstance(command, Grant):
                self.running[command.traj] = command.replica

    def run(self, until: int = 10**6) -> int:
        """Until all have left, or to the step; returns the step at the end."""
        for traj in self.turns_of:
            self.tell(
                Submitted(traj=traj, group=traj.rpartition("/")[0], stage="s", prompt_tokens=PROMPT, max_tokens=LIMIT)
            )
            self.wakes[traj] = 0
        while (self.wakes or self.running or self.scheduler.state.ready) and self.step < until:
            for traj in [traj for traj, at in self.wakes.items() if at == self.step]:
                del self.wakes[traj]
                self.tell(TurnReady(traj=traj, context_tokens=self.context[traj]))
            self.step += 1
            for traj in list(self.running):
                self.left[traj] += 1
                if self.left[traj] == self.turns_of[traj][self.number[traj]]:
                    self.end_turn(traj)
            if self.step % 50 == 0:
                self.report()
        return self.step

    def end_turn(self, traj: str) -> None:
        del self.running[traj]
        self.context[traj] += self.left[traj]
        self.tell(TurnEnded(traj=traj, new_tokens=self.left[traj]))
        self.left[traj] = 0
        self.number[traj] += 1
        if self.number[traj] == len(self.turns_of[traj]):
            self.tell(Left(traj=traj))
        else:
            self.context[traj] += 4
            self.wakes[traj] = self.step + TOOL_STEPS

    def report(self) -> None:
        for replica in list(self.scheduler.state.replicas):
            there = [traj for traj, at in self.running.items() if at == replica]
            used = sum(self.context[traj] + self.left[traj] for traj in there)
            self.tell(LoadSeen(replica=replica, used_tokens=used, running=len(there), waiting=0))


def lengths(seed: int, groups: int = 8, siblings: int = 4) -> dict[str, list[int]]:
    rng = random.Random(seed)
    out = {}
    for group in range(groups):
        hard = rng.uniform(0.5, 2.0)
        for sibling in range(siblings):
            turns = rng.randint(1, 4)
            out[f"g{group}/{sibling}"] = [max(1, int(hard * rng.uniform(5, 45))) for _ in range(turns)]
    return out


def clockwork(
    name: str, turns_of: dict[str, list[int]], pools: tuple[int, ...] = (900, 900), **tunables: Any
) -> Clockwork:
    return Clockwork(begin(name, pools, **tunables), turns_of)


def swap_futures(name: str, seed: int, share: float, **tunables: Any) -> None:
    """Two futures that agree on all that has happened by a step give the same commands up to that step."""
    turns_of = lengths(seed)
    end = clockwork(name, turns_of, **tunables).run()
    step = int(share * end)
    now = clockwork(name, turns_of, **tunables)
    now.run(until=step)
    rng = random.Random(seed + 1)
    other = {}
    for traj, turns in turns_of.items():
        done, begun = now.number[traj], now.left[traj]
        if done == len(turns):
            other[traj] = turns
        else:
            # The turn under way goes on for at least one more token, and what follows is another story;
            # one that is at a tool has a turn to come in both.
            rest = [max(begun + 1, rng.randint(1, 60)), *(rng.randint(1, 60) for _ in range(rng.randint(0, 3)))]
            other[traj] = turns[:done] + rest
    assert other != turns_of
    swapped = clockwork(name, other, **tunables)
    swapped.run(until=step)
    assert swapped.log == now.log and (step < 3 or now.log)


def begin(name: str, pools: tuple[int, ...] = (1000, 1000), **tunables: Any) -> Scheduler:
    made = Scheduler(make_policy(name, **tunables))
    for replica, kv_tokens in enumerate(pools):
        made.handle(ReplicaUp(replica=replica, kv_tokens=kv_tokens))
    return made


def submit(
    made: Scheduler, *trajs: str, prompt: int = 20, limit: int = 400, together: bool = False
) -> list[int | None]:
    """Submit and ask for the first turn; the replica of each, or None. `together`: as it is in the end."""
    for traj in trajs:
        group = traj.rpartition("/")[0]
        made.handle(Submitted(traj=traj, group=group, stage="s", prompt_tokens=prompt, max_tokens=limit))
    homes = [where(made.handle(TurnReady(traj=traj, context_tokens=prompt)), traj) for traj in trajs]
    return [made.state.trajectories[traj].home for traj in trajs] if together else homes


def where(commands: list[Command], traj: str) -> int | None:
    found = [c.replica for c in commands if isinstance(c, Grant) and c.traj == traj]
    return found[0] if found else None


def again(made: Scheduler, traj: str, new: int = 10) -> int | None:
    """End its turn and ask for the next one."""
    made.handle(TurnEnded(traj=traj, new_tokens=new))
    context = made.state.trajectories[traj].context_tokens
    return where(made.handle(TurnReady(traj=traj, context_tokens=context)), traj)


TEN = [f"g{k // 2}/{k % 2}" for k in range(10)]
