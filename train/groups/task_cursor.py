"""The order in which the tasks of a stage are drawn, and which of them come less often or no more."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from rocstar.engine.types import Group, Scored, Task
from rocstar.train.algorithm.difficulty import SolveRate
from rocstar.train.groups.advantages import path_weights_of
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.tasks.data import content_id, interleave_by_source


class TaskCursor:
    """An endless order over tasks that can be stopped and resumed.

    Invariants: every epoch shows each task at most once, in an order that depends on (seed, stage, epoch) alone; a
    cursor restored from `state()` continues exactly where the other stood.

    An epoch leaves out no task, but as `rl.retire_above` and `rl.difficulty_floor` say: a retired task, and with
    probability 1 - max(floor, weight) one that teaches little (algorithm/difficulty.py). The draw depends on
    (seed, stage, epoch, task) and on the outcomes given to `observe` before.
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int, stage: int = 0, rl: RlConfig | None = None) -> None:
        """`stage` is counted from 0; each has its own order. `rl` None: no task is left out."""
        if not tasks:
            raise ConfigError("there are no tasks to train on; the data source or the difficulty filter left none")
        self._tasks = sorted(tasks, key=lambda task: task.id)
        self._seed = f"{seed}/stage{stage}" if stage else f"{seed}"
        self._fingerprint = content_id("", "\0".join(task.id for task in self._tasks), self._seed)
        self._epoch, self._position = 0, 0
        self._order = self._shuffled()
        self._retire_above, self._floor = (rl.retire_above, rl.difficulty_floor) if rl else (1.0, 1.0)
        self._least = rl.tasks_per_step if rl else 1
        self._rates: dict[str, SolveRate] = {}
        self._retired: set[str] = set()

    @property
    def observes(self) -> bool:
        """True if the order depends on outcomes."""
        return min(self._retire_above, self._floor) < 1

    def take(self, count: int) -> list[Task]:
        """Return the next `count` tasks, across the ends of epochs. Of a cursor that observes, they differ, and are
        fewer if fewer are not retired."""
        chosen, observes = list[Task](), self.observes
        if observes:
            count = min(count, len(self._tasks) - len(self._retired))
        while len(chosen) < count:
            if self._position == len(self._order):
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._shuffled()
            task = self._order[self._position]
            self._position += 1
            if not observes or (task not in chosen and self._is_shown(task)):
                chosen.append(task)
        return chosen

    def _is_shown(self, task: Task) -> bool:
        weight = self._rates[task.id].weight if task.id in self._rates else 1.0
        draw = random.Random(f"{self._seed}/{self._epoch}/{task.id}").random()
        return task.id not in self._retired and draw < max(self._floor, weight)

    def observe(self, groups: Sequence[Group]) -> dict[str, float]:
        """Take in the outcomes of a step's groups, all generated siblings, and return the metrics of the supply.

        With forks a sibling counts by its path weight: a root and its branches are one attempt.
        A task is retired once its rate reaches `rl.retire_above`, unless only `rl.tasks_per_step` would be left.
        """
        if not self.observes:
            return {}
        for group in sorted(groups, key=lambda group: (group.task.id, group.trajectories[0].key.step)):
            task, scored = group.task.id, group.scored
            pairs = [(w, t.outcome) for w, t in zip(path_weights_of(scored), scored, strict=True)]
            correct = math.fsum(w for w, outcome in pairs if isinstance(outcome, Scored) and outcome.is_correct)
            self._rates[task] = self._rates.get(task, SolveRate()).after(correct, math.fsum(w for w, _ in pairs))
            has_more = len(self._tasks) - len(self._retired) > self._least
            if has_more and self._retire_above < 1 and self._rates[task].rate >= self._retire_above:
                self._retired.add(task)
        return {"tasks/retired": float(len(self._retired))}

    def state(self) -> dict[str, Any]:
        """Return JSON values for `restore`."""
        state = {"epoch": self._epoch, "position": self._position, "fingerprint": self._fingerprint}
        if not self.observes:
            return state
        rates = {task: [rate.correct, rate.attempts] for task, rate in self._rates.items()}
        return state | {"rates": rates, "retired": sorted(self._retired)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue at `state`. Raises ConfigError if it belongs to other tasks or another seed."""
        if state["fingerprint"] != self._fingerprint:
            raise ConfigError(
                f"the checkpoint's task cursor ({state['fingerprint']}) belongs to other tasks or another "
                f"seed than this recipe's ({self._fingerprint}); resume with the data and seed it began with"
            )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._rates = {task: SolveRate(*counts) for task, counts in state.get("rates", {}).items()}
        self._retired = set(state.get("retired", ()))
        self._order = self._shuffled()

    def _shuffled(self) -> list[Task]:
        order = list(self._tasks)
        random.Random(f"{self._seed}/{self._epoch}").shuffle(order)
        return interleave_by_source(sorted(order, key=lambda task: task.source))
