"""The recipe: TOML over typed sections, validated before anything is built. Imports no torch.

A recipe is read once (load.py), overridden by dotted options (`--rl.lr=1e-3`, `--stages.0.steps=2`), checked,
and written back resolved beside the run (toml.py). Every field is listed in tests/config_surface.txt, and
described in docs/reference/recipe.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rocstar.sandbox.command_line import suggest
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.recipe.environment_config import EnvironmentConfig, check_environments
from rocstar.train.recipe.model_config import LoraConfig, ModelConfig
from rocstar.train.recipe.paths import is_reference
from rocstar.train.recipe.rl_config import (
    ROLLOUT_LOSSES,
    OffPolicyConfig,
    RlConfig,
    StageConfig,
    TeacherConfig,
    check_teacher,
)
from rocstar.train.recipe.section import (
    Attempts,
    Betas,
    Expert,
    LearningRate,
    Seconds,
    Section,
    Seed,
    Share,
    Steps,
    Tasks,
    Tokens,
    Turns,
    Unit,
)
from rocstar.train.recipe.tool_config import ToolChoice, ToolConfig, check_tools

SETS = (
    "aime24",
    "aime25",
    "hmmt_feb_2025",
    "math500",
    "amc23",
    "gsm8k",
    "gpqa_diamond",
    "ifeval",
    "bfcl_v3",
    "arena_hard",
)
"""Names of train/evaluation/benchmarks/registry.py, which a test compares: importing it takes time."""

HELDOUT = "heldout"
"""The name of an unnamed set of tasks."""


class EvalConfig(Section):
    """Tasks for evaluation, which the stages leave out.

    Either `set` names a built-in one (docs/reference/evaluation.md), or `data` says where the tasks are.
    """

    set: str = Field("", description="a built-in set: " + ", ".join(SETS) + "; '' = the tasks of `data`")
    path: Expert[str] = Field(
        "", description="of a built-in set: a local copy; '' = the hub, at the revision that is pinned"
    )
    name: Expert[str] = Field("", description="as metrics and files call it; '' = `set`, or heldout")
    data: DataConfig | None = Field(None, description="held-out tasks of your own")
    limit: Expert[Tasks] = Field(0, ge=0, description="use only the first so many tasks; 0 = all")
    samples_per_task: Attempts = Field(
        0, ge=0, description="k of avg@k and pass@k; 0 = the built-in set's own, else 4"
    )
    temperature: Expert[Annotated[float | None, Unit("divisor of the logits")]] = Field(
        None, ge=0, description="of the sampling; 0 = greedy; left out = the built-in set's own, else 1"
    )
    max_response_tokens: Expert[Tokens] = Field(
        0, ge=0, description="0 = the built-in set's own, else as the last stage"
    )
    max_turns: Expert[Turns] = Field(0, ge=0, description="0 = the built-in set's own, else as the last stage")
    every: Steps = Field(0, ge=0, description="also every so many RL steps; 0 = only before and after")

    @property
    def label(self) -> str:
        """Return the name of the set in metrics and files."""
        return self.name or self.set or HELDOUT

    @model_validator(mode="after")
    def _one_source(self) -> EvalConfig:
        if self.set and self.set not in SETS:
            raise ValueError(f"set = {self.set!r} is not a built-in set; {suggest(self.set, SETS)}")
        if bool(self.set) == (self.data is not None):
            raise ValueError(
                "a set of an evaluation is either built in, set = 'NAME', or of your own tasks, "
                "data = { source = ... }; give one of the two"
            )
        if self.path and not self.set:
            raise ValueError(f"path = {self.path!r} is of a built-in set; give data.source, or set = 'NAME'")
        if self.name and not self.name.replace("_", "").replace("-", "").replace(".", "").isalnum():
            raise ValueError(f"name = {self.name!r}: use letters, digits, '_', '-' and '.'")
        return self


class AgentConfig(Section):
    """The agent that works on each task (docs/guide/own-agent.md)."""

    kind: str = Field(
        "builtin",
        description="builtin (turns with [[tools]]), program (`command`, a process for each attempt), or "
        "'module:function', an async function: a module on sys.path or beside the recipe",
    )
    command: list[str] = Field(
        [],
        description="command line of a program, as a text or as its words; files beside the recipe are found. It "
        "reads the task in ROCSTAR_TASK and the model's address in OPENAI_BASE_URL or ANTHROPIC_BASE_URL",
    )
    args: Expert[dict[str, Any]] = Field({}, description="keyword arguments of the function")
    reward: Expert[Literal["recipe", "program", "both"]] = Field(
        "recipe",
        description="recipe: [reward] judges the conversation and the agent's answer; program: the number that the "
        "agent gives; both: their sum",
    )

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, raw: Any) -> Any:
        return shlex.split(raw) if isinstance(raw, str) else raw

    @model_validator(mode="after")
    def _fits_its_kind(self) -> AgentConfig:
        if self.kind not in ("builtin", "program") and not is_reference(self.kind):
            known = ("builtin", "program", "module:function")
            raise ValueError(f"agent {self.kind!r} is not known; {suggest(self.kind, known)}")
        if (self.kind == "program") != bool(self.command):
            raise ValueError(f"kind = {self.kind!r} and command = {self.command!r}: a program needs a command")
        if self.args and not is_reference(self.kind):
            raise ValueError(f"args = {self.args!r} belong to a function; kind = {self.kind!r} takes none")
        if self.reward != "recipe" and self.kind == "builtin":
            raise ValueError(f"reward = {self.reward!r}: the built-in loop gives no number; set kind, or leave it out")
        return self


class RewardConfig(Section):
    """The reward of an attempt, and its correctness (docs/guide/own-reward.md)."""

    kind: str = Field(
        "math",
        description="'math' (the boxed value of the last answer block, compared exactly: 1 or 0), or "
        "'module:function', looked for beside the recipe, then on sys.path",
    )
    mode: Expert[Literal["strict", "fused"]] = Field(
        "strict",
        description="of 'math': strict, or the verdicts of the original's graders on the whole transcript "
        "(fused), to evaluate its checkpoints",
    )
    args: Expert[dict[str, Any]] = Field({}, description="keyword arguments of that function")
    timeout_s: Expert[Seconds] = Field(
        30.0, gt=0, allow_inf_nan=False, description="a longer call of that function fails its trajectory"
    )

    @model_validator(mode="after")
    def _kind_is_known(self) -> RewardConfig:
        if self.kind != "math" and not is_reference(self.kind):
            raise ValueError(f"kind = {self.kind!r} is neither 'math' nor of the form 'module:function'")
        if self.kind != "math" and self.mode != "strict":
            raise ValueError(f"mode = {self.mode!r} belongs to kind = 'math'; a function of your own has none")
        if self.kind == "math" and self.args:
            raise ValueError("args belong to a function of your own; kind = 'math' takes none")
        return self


class CallbackConfig(Section):
    """One of run.callbacks: a class of yours that listens to the run (docs/guide/callbacks.md)."""

    kind: str = Field(
        description="'module:Class', beside the recipe or where Python finds modules, or 'FILE.py:Class'"
    )
    args: dict[str, Any] = Field({}, description="keyword arguments that the class is made with")


class RunConfig(Section):
    """The run as a whole."""

    name: str = Field("run", description="the folder is runs/NAME unless --output-dir is given")
    seed: Seed = Field(0, description="orders the tasks and keys all noise: sampling, RoC, demonstrations")
    threads: Expert[Annotated[int, Unit("threads")]] = Field(
        0, ge=0, description="torch threads of this process; 0 = its share of the machine's physical cores"
    )
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        [], description="where metrics go besides metrics.jsonl"
    )
    callbacks: list[CallbackConfig] = Field(
        [], description="custom classes that receive steps, groups and evaluations; 'module:Class' or a table"
    )

    keep_records: Expert[Steps] = Field(
        0,
        ge=0,
        description="keep the trajectory records of the newest so many steps, and of steps behind the last "
        "checkpoint; 0 = all",
    )

    @field_validator("callbacks", mode="before")
    @classmethod
    def _a_name_is_a_table(cls, given: Any) -> Any:
        """`"module:Class"` is short for `{ kind = "module:Class" }`."""
        if not isinstance(given, list):
            return given
        return [{"kind": one} if isinstance(one, str) else one for one in given]


class CheckpointConfig(Section):
    """When a checkpoint is written, and which ones stay."""

    every: Steps = Field(
        0, ge=0, description="RL steps from one checkpoint to the next; 0 = only at the end of a stage"
    )
    sft_every: Expert[Steps] = Field(
        500, ge=0, description="updates of the cold start from one checkpoint to the next; 0 = none in it"
    )
    keep_last: Expert[Annotated[int, Unit("checkpoints")]] = Field(2, ge=1, description="the newest so many stay")
    keep_every: Expert[Steps] = Field(0, ge=0, description="also keep for good those of every so many steps; 0 = none")


Conversations = Annotated[int, Unit("conversations")]


class Noise(Section):
    """The demonstrator's errors: probabilities, each drawn independently."""

    guess: Expert[Share] = Field(0.06, ge=0, le=1, description="answers with a random number and no call")
    right: Expert[Share] = Field(0.40, ge=0, le=1, description="picks a right program")
    first_slip: Expert[Share] = Field(0.60, ge=0, le=1, description="breaks its first call")
    retry_slip: Expert[Share] = Field(
        0.12, ge=0, le=1, description="breaks its second call; the third is never broken"
    )
    no_tag: Expert[Share] = Field(0.06, ge=0, le=1, description="ends without an answer block")
    double_answer: Expert[Share] = Field(0.08, ge=0, le=1, description="gives the answer block twice")


class SftConfig(Section):
    """Cold start: next-token loss on assistant tokens. steps = 0 skips it."""

    steps: Steps = Field(0, ge=0, description="updates of the cold start; 0 = none")
    data: str = Field("demonstrations", description="'demonstrations', or a chat JSONL file")
    template: Expert[str] = Field(
        "",
        description="chat template of the conversations, bundled or a file, whose turns end with the same "
        "token as those of model.template; '' = model.template",
    )
    tools: Expert[Literal["recipe", "row"]] = Field(
        "recipe", description="tools that a conversation without `tools` shows: the recipe's, or none (row)"
    )
    max_contradicting: Expert[Share] = Field(
        0.01,
        ge=0,
        le=1,
        description="conversations of a file whose prompt demands `<answer>` or `\\boxed` and whose "
        "assistant never writes it, at most",
    )
    num_demonstrations: Expert[Conversations] = Field(
        12_000, ge=1, description="conversations that the demonstrator makes for data = 'demonstrations'"
    )
    demonstration_tasks: DataConfig | None = Field(None, description="tasks that the demonstrator solves")
    noise: Noise = Noise()
    batch_size: Expert[Conversations] = Field(32, ge=1, description="conversations of an update")
    optimizer: Expert[Literal["adamw", "muon"]] = Field(
        "adamw", description="muon: for the matrices of the layers, AdamW for the rest"
    )
    lr: LearningRate = Field(5e-6, gt=0, description="learning rate after the warm-up")
    betas: Expert[Betas] = Field([0.9, 0.95], description="of AdamW: of the first and of the second moment")
    warmup_steps: Expert[Steps] = Field(30, ge=0, description="first steps, in which the rate rises linearly")
    decay_fraction: Expert[Share] = Field(0.4, ge=0, le=1, description="last part of the steps, linear to 2%")
    digit_weight: Expert[Annotated[float, Unit("factor")]] = Field(
        0.0, ge=0, description="extra weight of the mean loss over digit tokens"
    )
    max_tokens: Expert[Tokens] = Field(2048, ge=8, description="longer conversations are skipped and counted")

    @field_validator("template")
    @classmethod
    def _is_not_the_models(cls, value: str) -> str:
        if value == "model":
            raise ValueError("template = 'model': name a bundled template or a .jinja file, or leave it out")
        return value


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
    teacher: TeacherConfig = TeacherConfig()
    stages: list[StageConfig] = Field([])
    eval: list[EvalConfig] = Field([])
    engine: EngineConfig = EngineConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="before")
    @classmethod
    def _set_dependent_defaults(cls, raw: Any) -> Any:
        """Lockstep excludes rollouts beside a learner; some losses exclude a second importance weight."""
        if not isinstance(raw, Mapping):
            return raw
        engine, rl, off_policy = raw.get("engine"), raw.get("rl", {}), raw.get("off_policy", {})
        if isinstance(rl, Mapping) and rl.get("loss") in ROLLOUT_LOSSES and isinstance(off_policy, Mapping):
            raw = {**raw, "off_policy": {"correction": "none", **off_policy}}
        if isinstance(engine, Mapping) and engine.get("deterministic") is True and isinstance(rl, Mapping):
            raw = {**raw, "rl": {"max_staleness": 0, **rl}}
        return raw

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Recipe:
        if self.engine.deterministic and self.rl.max_staleness:
            raise ValueError(
                f"rl.max_staleness = {self.rl.max_staleness} lets rollouts and learner run beside each "
                "other, which engine.deterministic = true excludes; set one of them to 0 or false"
            )
        if self.rl.end_early and (self.environments or self.reward.kind != "math" or self.agent.kind != "builtin"):
            raise ValueError(
                "rl.end_early needs rewards of 1 and 0 and the built-in loop: an environment, a reward function and "
                "an agent of your own may give others; set it to false"
            )
        if self.engine.deterministic and any(one.max_episodes for one in self.environments):
            raise ValueError(
                "environments.max_episodes lets attempts wait for each other, which engine.deterministic = true "
                "excludes; set one of them to 0 or false"
            )
        if self.rl.loss in ROLLOUT_LOSSES and self.off_policy.correction not in ("none", "negative_mask"):
            raise ValueError(
                f"off_policy.correction = {self.off_policy.correction!r} weights a token by learner / rollout, which "
                f"the ratio of rl.loss = {self.rl.loss!r} contains: the mismatch would count twice; leave it out, or "
                "set it to 'none' or 'negative_mask'"
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
        if self.rl.fork != "none" and (self.environments or self.agent.kind != "builtin"):
            other = "[[environments]]" if self.environments else f"agent.kind = {self.agent.kind!r}"
            raise ValueError(
                f"rl.fork = {self.rl.fork!r} copies the sessions of [[tools]], and {other} has state that cannot be "
                "copied; set rl.fork = 'none', or remove the other"
            )
        check_teacher(self.teacher, self.rl)
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
