"""A set of an evaluation: its tasks, its prompt, its settings and its judge.

[[eval]] + tasks ──> EvaluationSet ──agent_for_set──> the run's agent with the settings of the set
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Attempt, Task
from rocstar.train.evaluation.benchmarks.benchmark import Asking, Benchmark, Defaults
from rocstar.train.evaluation.benchmarks.registry import find
from rocstar.train.recipe.config import Recipe, with_eval_limits
from rocstar.train.recipe.errors import ConfigError

EVAL_SEED = 1_000_003
"""Added to the run's seed: an evaluation has other noise than training. Noise depends on the step too, so
`rocstar eval`, which uses step 0, draws other attempts for a checkpoint than the run did."""
PLAIN_DEFAULTS = Defaults(samples=1, temperature=1.0, max_response_tokens=1, max_turns=1)
"""The defaults for tasks of the recipe itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSet:
    """A set with its resolved settings."""

    name: str
    tasks: Sequence[Task]
    samples: int
    temperature: float
    max_response_tokens: int
    max_turns: int
    every: int = 0
    benchmark: Benchmark | None = None
    """The built-in set, or None for tasks of the recipe."""

    @property
    def asking(self) -> Asking:
        return self.benchmark.asking if self.benchmark else Asking.agent

    @property
    def is_plain(self) -> bool:
        """True if it is prompted and judged like training tasks, so that any node can roll it out."""
        own = self.benchmark
        return own is None or (own.judge is None and own.counterpart is None and own.asking is Asking.agent)

    @property
    def is_hidden(self) -> bool:
        return self.benchmark is not None and self.benchmark.hidden

    def measures(self, attempt: Attempt) -> Mapping[str, float]:
        """Return further columns of an attempt."""
        own = self.benchmark
        return own.measures(attempt) if own and own.measures else {}

    def settings(self) -> dict[str, Any]:
        """Return the settings on which an attempt depends besides the task, as JSON."""
        return {
            "asking": self.asking.value,
            "samples": self.samples,
            "temperature": self.temperature,
            "max_response_tokens": self.max_response_tokens,
            "max_turns": self.max_turns,
        }


def evaluation_sets(recipe: Recipe, tasks: Mapping[str, Sequence[Task]] | None = None) -> list[EvaluationSet]:
    """Return the sets of a recipe in its order. `tasks` are by label; None: sets without tasks."""
    sets = []
    for config in with_eval_limits(recipe).eval:
        benchmark = find(config.set) if config.set else None
        default = benchmark.defaults if benchmark else PLAIN_DEFAULTS
        sets.append(
            EvaluationSet(
                name=config.label,
                tasks=() if tasks is None else tasks[config.label][: config.limit or None],
                samples=config.samples_per_task or default.samples,
                temperature=default.temperature if config.temperature is None else config.temperature,
                max_response_tokens=config.max_response_tokens or default.max_response_tokens,
                max_turns=config.max_turns or default.max_turns,
                every=config.every,
                benchmark=benchmark,
            )
        )
    return sets


def agent_for_set(agent: Agent, chosen: EvaluationSet) -> Agent:
    """Return the run's agent with a set's settings, prompt and judge."""
    limits = dataclasses.replace(
        agent.limits, max_response_tokens=chosen.max_response_tokens, max_turns=chosen.max_turns
    )
    sampling = dataclasses.replace(agent.sampling, temperature=chosen.temperature)
    functions = {
        Asking.agent: None,
        Asking.chat: lambda _: (),
        Asking.functions: lambda task: task.meta.get("functions") or (),
    }
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


def check_room(recipe: Recipe, positions: int | None) -> None:
    """Raise ConfigError if a set's responses alone can exceed the model's positions."""
    for k, chosen in enumerate(evaluation_sets(recipe)):
        if positions is not None and chosen.max_response_tokens >= positions:
            own = "" if recipe.eval[k].max_response_tokens else f" (the default of {chosen.name})"
            raise ConfigError(
                f"eval.{k}.max_response_tokens = {chosen.max_response_tokens}{own} leaves no room for a "
                f"prompt in the model's {positions} positions; set eval.{k}.max_response_tokens lower"
            )
