"""Where the rollouts of a recipe fork (rl.fork)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from rocstar.engine.rollout.forks import ForkRule, after_an_error, after_every_turn
from rocstar.engine.types import Task, Turn
from rocstar.train.recipe import own_code
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.rl_config import RlConfig

LOG = logging.getLogger(__name__)
FIELD: Final = "rl.fork"
Chooses = Callable[[Task, Sequence[Turn]], bool]
BUILT_IN: Final = {"error": after_an_error, "turn": after_every_turn}


def check_fork(rl: RlConfig, nodes: int) -> None:
    """ConfigError if there is no such function, or rollouts on several nodes would fork."""
    if fork_rule(rl) is not None and nodes > 1:
        raise ConfigError(f"{FIELD} = {rl.fork!r} forks on one node, and {nodes} roll out; set {FIELD} = 'none'")


def fork_rule(rl: RlConfig) -> ForkRule | None:
    """Return the rule; None without forks. ConfigError if there is no such function."""
    if rl.fork == "none":
        return None
    chooses = BUILT_IN[rl.fork] if rl.fork in BUILT_IN else _own(rl.fork)
    return ForkRule(chooses=chooses, width=rl.fork_width, depth=rl.fork_depth, tokens=rl.fork_tokens)


def _own(name: str) -> Chooses:
    found = own_code.load_plain(name, field=FIELD, takes=("a task", "its turns"))

    def chooses(task: Task, turns: Sequence[Turn]) -> bool:
        try:
            chosen = found(task, turns)
            if not isinstance(chosen, bool):
                raise TypeError(f"it gave {chosen!r:.80}, not True or False")
            return chosen
        except (Exception, SystemExit) as error:  # the user's code: whatever it raises, there is no decision
            LOG.warning("%s = %r failed", FIELD, name, exc_info=True)
            raise TrainingStopped(
                f"{FIELD} = {name!r} failed on task {task.id!r}: {type(error).__name__}: {error}; correct it and go "
                "on with --resume"
            ) from error

    return chooses
