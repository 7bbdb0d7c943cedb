"""A set of an evaluation at work: its tasks, how the policy is asked, under which settings, and who scores.

[[eval]] + tasks ──> EvaluationSet ──agent_for──> the run's agent, asked so
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Attempt, Task
from rocstar.train.evaluation.benchmarks.benchmark import Asking, Benchmark, no_measures
from rocstar.train.evaluation.benchmarks.registry import find
from rocstar.train.recipe.config import Recipe, with_eval_limits
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.eval_config import EvalConfig

EVAL_SEED = 1_000_003
"""Added to the run's seed: an evaluation has other noise than training. Noise depends on the step too, so
`rocstar eval`, which uses step 0, draws other attempts for a checkpoint than the run did."""
FUNCTIONS = "functions"
"""In a task's `meta`: what it may call, as a chat template takes tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSet:
    """A set with its settings as numbers."""

    name: str
    tasks: Sequence[Task]
    samples: int
    temperature: float
    max_response_tokens: int
    max_turns: int
    every: int = 0
    benchmark: Benchmark | None = None
    """The built-in set that it is; None for own tasks."""

    @property
    def asking(self) -> Asking:
        return self.benchmark.asking if self.benchmark else Asking.agent

    @property
    def is_plain(self) -> bool:
        """Whether it is asked and judged as training tasks are, so that any node can."""
        own = self.benchmark
        return own is None or (own.judge is None and own.counterpart is None and own.asking is Asking.agent)

    @property
    def is_hidden(self) -> bool:
        return self.benchmark is not None and self.benchmark.hidden

    def measures(self, attempt: Attempt) -> Mapping[str, float]:
        """Further columns of an attempt."""
        return (self.benchmark.measures if self.benchmark else no_measures)(attempt)

    def settings(self) -> dict[str, Any]:
        """What an attempt depends on besides the task, as JSON."""
        return {
            "asking": self.asking.value,
            "samples": self.samples,
            "temperature": self.temperature,
            "max_response_tokens": self.max_response_tokens,
            "max_turns": self.max_turns,
        }


def evaluation_sets(recipe: Recipe, tasks: Mapping[str, Sequence[Task]]) -> list[EvaluationSet]:
    """The sets of a recipe in its order. `tasks`: of each by its label."""
    return [_set(config, tasks[config.label]) for config in with_eval_limits(recipe).eval]


def _set(config: EvalConfig, tasks: Sequence[Task]) -> EvaluationSet:
    benchmark = find(config.set) if config.set else None
    own = benchmark.defaults if benchmark else None
    return EvaluationSet(
        name=config.label,
        tasks=tasks[: config.limit] if config.limit else tasks,
        samples=config.samples_per_task or (own.samples if own else 1),
        temperature=config.temperature if config.temperature is not None else own.temperature if own else 1.0,
        max_response_tokens=config.max_response_tokens or (own.max_response_tokens if own else 1),
        max_turns=config.max_turns or (own.max_turns if own else 1),
        every=config.every,
        benchmark=benchmark,
    )


def agent_for_set(agent: Agent, chosen: EvaluationSet) -> Agent:
    """The run's agent under a set's settings: asked as the set asks, scored by its judge where it has one."""
    limits = dataclasses.replace(
        agent.limits, max_response_tokens=chosen.max_response_tokens, max_turns=chosen.max_turns
    )
    sampling = dataclasses.replace(agent.sampling, temperature=chosen.temperature)
    functions = {Asking.agent: None, Asking.chat: _no_functions, Asking.functions: functions_of}
    judge = chosen.benchmark.judge if chosen.benchmark else None
    counterpart = chosen.benchmark.counterpart if chosen.benchmark else None
    return dataclasses.replace(
        agent,
        limits=limits,
        sampling=sampling,
        functions=functions[chosen.asking],
        prompt=agent.prompt if chosen.asking is Asking.agent else None,
        judge=agent.judge if judge is None else judge(),
        counterpart=None if counterpart is None else counterpart(),
    )


def _no_functions(task: Task) -> Sequence[Mapping[str, Any]]:
    return ()


def functions_of(task: Task) -> Sequence[Mapping[str, Any]]:
    """What the task itself offers to be called."""
    found: Sequence[Mapping[str, Any]] = task.meta.get(FUNCTIONS) or ()
    return found


def check_room(recipe: Recipe, positions: int | None) -> None:
    """ConfigError where a set's answers alone are longer than the model's longest text."""
    no_tasks: Mapping[str, Sequence[Task]] = {config.label: () for config in recipe.eval}
    for k, chosen in enumerate(evaluation_sets(recipe, no_tasks)):
        if positions is not None and chosen.max_response_tokens >= positions:
            own = "" if recipe.eval[k].max_response_tokens else f" (the default of {chosen.name})"
            raise ConfigError(
                f"eval.{k}.max_response_tokens = {chosen.max_response_tokens}{own} leaves no room for a "
                f"prompt in the model's {positions} positions; set eval.{k}.max_response_tokens lower"
            )
