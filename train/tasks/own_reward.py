"""A custom reward function, `reward.kind = "module:function"`.

    attempt, args [, sandbox] ──> the function ──┬─ Reward, number or bool ────────────> Scored
                                                 ├─ raised, not finite, another type ──> Failed reward_error
                                                 └─ longer than reward.timeout_s ──────> Failed reward_timeout

The trajectory waits for its call. A coroutine function runs on the event loop; a plain one in a separate
thread (engine/tools/threads.py), where one that hangs keeps its place until the process ends. The function is
trusted: it runs in this process (docs/guide/own-reward.md).
"""

import asyncio
import inspect
import logging
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rocstar.engine.rollout.rollout import Judge
from rocstar.engine.tools import threads
from rocstar.engine.types import REWARD_TIMEOUT, Attempt, Failed, Outcome, Scored
from rocstar.sandbox.types import Sandbox, SandboxError
from rocstar.train.recipe import own_code
from rocstar.train.recipe.config import RewardConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.reward import FusedJudge, MathJudge

__all__ = ["Attempt", "FunctionReward", "Reward", "check_reward", "make_judge"]

LOG = logging.getLogger(__name__)
FIELD = "reward.kind"
MAX_LOGGED = 20
"""The maximum number of different failures whose traceback is logged; all failures are counted."""
MAX_DETAIL = 2000
"""The maximum characters of a traceback in the trajectory's record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The result of a reward function.

    Args:
        value: any finite number; siblings are compared by it.
        is_correct: the side in Resample-on-Correct, and the value an evaluation counts.
        method: a word for the record: the method of the verdict.
    """

    value: float
    is_correct: bool
    method: str = "own"

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise TypeError(f"value is {self.value!r}; give a number")
        if not math.isfinite(self.value):
            raise ValueError(f"value is {self.value!r}; give a finite number")
        if not isinstance(self.is_correct, bool) or not isinstance(self.method, str):
            raise TypeError(f"is_correct must be a bool and method a str, got {self!r}")


def as_reward(given: object) -> Reward:
    """Convert a function's value: a Reward stays; a bool is 1 or 0; a number is correct from 1 on.

    Raises TypeError or ValueError for other values.
    """
    if isinstance(given, Reward):
        return given
    if isinstance(given, bool):
        return Reward(value=float(given), is_correct=given)
    if isinstance(given, int | float):
        return Reward(value=float(given), is_correct=given >= 1)
    raise TypeError(f"the function gave {given!r:.200}; it must give a Reward, a number or a bool")


def make_judge(config: RewardConfig, sandbox: Sandbox) -> Judge:
    """Return the judge that a recipe asks for. ConfigError as `check_reward`."""
    if config.kind == "math":
        return FusedJudge(sandbox) if config.mode == "fused" else MathJudge(sandbox)
    return FunctionReward(config, sandbox)


@dataclass(frozen=True, slots=True)
class AgentReward:
    """Scores by the number that a foreign agent gave; with a judge by the sum of both, and correct by the judge."""

    judge: Judge | None

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        number = attempt.given.reward if attempt.given is not None else None
        if number is None and not attempt.is_truncated:
            return Failed(kind="agent_no_reward", retryable=False, detail="agent.reward: the agent gave no number")
        given = as_reward(number or 0.0)
        is_correct = given.is_correct and not attempt.is_truncated
        own = Scored(reward=given.value, method="program", is_correct=is_correct)
        judged = own if self.judge is None else await self.judge.score(attempt, deadline=deadline)
        if judged is own or isinstance(judged, Failed):
            return judged
        return replace(judged, reward=judged.reward + own.reward)


def check_reward(config: RewardConfig) -> None:
    """Load the function; ConfigError if it does not exist or cannot be called as in a run."""
    if config.kind != "math":
        _load_function(config)


def _load_function(config: RewardConfig) -> tuple[Callable[..., Any], bool, bool]:
    """Return a recipe's function, if it is a coroutine function, and if it takes the sandbox."""
    call = own_code.load_function(config.kind, field=FIELD)
    field = f"{FIELD} = {config.kind!r}"
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        raise ConfigError(f"{field} has no readable signature; wrap it in a Python function") from None
    wants_sandbox = "sandbox" in signature.parameters
    of_object = vars(type(call)).get("__call__")  # an object with `async def __call__`
    is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(of_object)
    if "sandbox" in config.args:
        raise ConfigError("reward.args.sandbox: the run gives the sandbox itself; remove it")
    try:
        signature.bind(None, **config.args, **({"sandbox": None} if wants_sandbox else {}))
    except TypeError as error:
        raise ConfigError(
            f"{field} has the signature {signature}, which does not fit a call with an attempt and "
            f"reward.args = {config.args!r}: {error}; change either"
        ) from None
    if wants_sandbox and not is_async:
        raise ConfigError(f"{field} takes the sandbox, which is awaited; define it with `async def`")
    return call, is_async, wants_sandbox


class FunctionReward:
    """Scores attempts by the recipe's function.

    Invariant: `Scored` means that the function gave a reward. A truncated attempt is never correct, whatever
    its value.
    """

    def __init__(self, config: RewardConfig, sandbox: Sandbox) -> None:
        self._config = config
        self._function, self._is_async, wants_sandbox = _load_function(config)
        self._given = {**config.args, **({"sandbox": sandbox} if wants_sandbox else {})}
        self._threads = threads.Threads("reward")
        self._logged: set[str] = set()

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        """TimeoutError when the trajectory's own deadline passes first. `deadline` is a `loop.time()`."""
        loop = asyncio.get_running_loop()
        left_s = math.inf if deadline is None else max(0.0, deadline - loop.time())
        limit_s = self._config.timeout_s
        work = loop.create_task(self._score(attempt))
        try:
            # Not wait_for, which waits for a coroutine that suppresses its cancellation.
            await asyncio.wait({work}, timeout=min(limit_s, left_s))
        finally:
            is_done = work.done()
            work.cancel()
        if is_done and not work.cancelled():
            return work.result()
        if is_done:
            return Failed(kind="reward_error", retryable=False, detail="it cancelled itself")
        if left_s < limit_s:
            raise TimeoutError
        detail = f"not done within reward.timeout_s = {limit_s:g}"
        self._log_once(attempt, detail)
        return Failed(kind=REWARD_TIMEOUT, retryable=False, detail=detail)

    async def _score(self, attempt: Attempt) -> Outcome:
        try:
            reward = as_reward(await self._call(attempt))
        except SandboxError as error:
            return Failed(kind=f"reward_{error.kind}", retryable=error.retryable, detail=str(error))
        except (Exception, SystemExit) as error:  # user code may raise anything
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, threads.__file__):
                trace = trace.tb_next  # begin at the user's first line
            text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
            self._log_once(attempt, text)
            return Failed(kind="reward_error", retryable=False, detail=text[-MAX_DETAIL:])
        return Scored(
            reward=float(reward.value), method=reward.method, is_correct=reward.is_correct and not attempt.is_truncated
        )

    async def _call(self, attempt: Attempt) -> object:
        if self._is_async:
            return await self._function(attempt, **self._given)
        return await self._threads.call(self._function, attempt, **self._given)

    def _log_once(self, attempt: Attempt, text: str) -> None:
        if text not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(text)
            LOG.warning("%s = %r failed for task %s: %s", FIELD, self._config.kind, attempt.task.id, text)
