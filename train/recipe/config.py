"""The recipe: TOML over typed sections, validated before anything is built. Imports no torch.

A recipe is read once (load.py), overridden by dotted options (`--rl.lr=1e-3`, `--stages.0.steps=2`), checked,
and written back resolved beside the run (toml.py). Every field is listed in tests/config_surface.txt, and
described in docs/reference/recipe.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from rocstar.train.recipe.agent_config import AgentConfig
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.recipe.environment_config import EnvironmentConfig, check_environments
from rocstar.train.recipe.eval_config import EvalConfig, listed
from rocstar.train.recipe.model_config import LoraConfig, ModelConfig
from rocstar.train.recipe.reward_config import RewardConfig
from rocstar.train.recipe.rl_config import OffPolicyConfig, RlConfig, StageConfig
from rocstar.train.recipe.run_config import CheckpointConfig, RunConfig
from rocstar.train.recipe.section import Section
from rocstar.train.recipe.sft_config import SftConfig
from rocstar.train.recipe.tool_config import ToolChoice, ToolConfig, check_tools, tools_of_before


class Recipe(Section):
    """A complete training: model, data, and monitoring."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    lora: LoraConfig = LoraConfig()
    tool: ToolConfig = ToolConfig()
    tasks: dict[str, DataConfig] = Field(
        {}, exclude=True, description="named sources of tasks; loading puts them where they are referred to"
    )
    tools: list[ToolChoice] = Field(
        [ToolChoice(kind="python")], min_length=1, description="the policy's tools, in the prompt's order"
    )
    environments: list[EnvironmentConfig] = Field([])

    agent: AgentConfig = AgentConfig()
    reward: RewardConfig = RewardConfig()
    sft: SftConfig = SftConfig()
    rl: RlConfig = RlConfig()
    off_policy: OffPolicyConfig = OffPolicyConfig()
    stages: list[StageConfig] = Field([])
    eval: list[EvalConfig] = Field([])
    engine: EngineConfig = EngineConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="before")
    @classmethod
    def _former_forms_and_lockstep(cls, raw: Any) -> Any:
        """Read the former forms of [tool] and [eval]; rollouts beside a learner exclude lockstep."""
        if not isinstance(raw, Mapping):
            return raw
        raw = dict(tools_of_before(raw))
        if "eval" in raw:
            raw["eval"] = listed(raw["eval"])
        engine, rl = raw.get("engine"), raw.get("rl", {})
        if isinstance(engine, Mapping) and engine.get("deterministic") is True and isinstance(rl, Mapping):
            raw["rl"] = {"max_staleness": 0, **rl}
        return raw

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Recipe:
        if self.engine.deterministic and self.rl.max_staleness:
            raise ValueError(
                f"rl.max_staleness = {self.rl.max_staleness} lets rollouts and learner run beside each "
                "other, which engine.deterministic = true excludes; set one of them to 0 or false"
            )
        if self.engine.deterministic and any(one.max_episodes for one in self.environments):
            raise ValueError(
                "environments.max_episodes lets attempts wait for each other, which engine.deterministic = true "
                "excludes; set one of them to 0 or false"
            )
        if self.lora.rank and self.model.path == "scratch":
            raise ValueError(
                f"lora.rank = {self.lora.rank} adapts a model that is there, and model.path = 'scratch' "
                "makes one; name a model, or set lora.rank = 0"
            )
        shortest = min((stage.max_response_tokens for stage in self.stages), default=self.rl.overlong_buffer + 1)
        if self.rl.overlong_buffer >= shortest:
            raise ValueError(
                f"rl.overlong_buffer = {self.rl.overlong_buffer} is not below stages.max_response_tokens = "
                f"{shortest}: every response would lose reward; lower it"
            )
        labels = [config.label for config in self.eval]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"two sets of eval are called {twice[0]!r}; give one another name: name = '...'")
        check_tools(self.tool, self.tools, demonstrated=bool(self.sft.steps) and self.sft.data == "demonstrations")
        check_environments(self.environments, [*(one.data for one in self.stages), *(one.data for one in self.eval)])
        if self.stages and self.stages[0].data is None and not self.environments:
            raise ValueError("stages.0.data is missing: the first stage must say where its tasks come from")
        if self.sft.steps and self.sft.data == "demonstrations" and self.sft.demonstration_tasks is None:
            raise ValueError("sft.demonstration_tasks is missing: demonstrations need tasks to solve")
        return self

    def reads_box(self, environment: str | None) -> bool:
        """Return whether the reward of a task in this environment, None or '' for none, reads a boxed answer."""
        given = {one.label for one in self.environments if one.reward == "environment"}
        is_given = self.agent.reward == "program" or environment in given
        return (self.reward.kind, self.reward.mode) == ("math", "strict") and not is_given


def with_eval_limits(recipe: Recipe) -> Recipe:
    """The recipe with the settings of its own sets as numbers: their own, else the last stage's, else those
    of a cold start alone. A built-in set has its own (train/evaluation/sets.py)."""
    last = recipe.stages[-1] if recipe.stages else None
    tokens, turns = (last.max_response_tokens, last.max_turns) if last else (1024, 8)
    sets = [
        config
        if config.set
        else config.model_copy(
            update={
                "samples_per_task": config.samples_per_task or 4,
                "temperature": 1.0 if config.temperature is None else config.temperature,
                "max_response_tokens": config.max_response_tokens or tokens,
                "max_turns": config.max_turns or turns,
            }
        )
        for config in recipe.eval
    ]
    return recipe.model_copy(update={"eval": sets})
