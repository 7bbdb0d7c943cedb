"""The recipe: TOML over typed sections, validated before anything is built. Imports no torch.

A recipe is read once, overridden by dotted options (`--rl.lr=1e-3`, `--stages.0.steps=2`), checked, and
written back resolved beside the run. Every field is listed in tests/config_surface.txt.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from rocstar.train.engine_config import EngineConfig
from rocstar.train.recipe_errors import explain
from rocstar.train.recipe_paths import resolve_paths
from rocstar.train.section import Section

RECIPES = Path(__file__).parent / "recipes"


class ConfigError(Exception):
    """A mistake in a recipe, an option or a path: value, reason and fix in one message. Exit code 2."""


class ConfigErrors(ConfigError):
    """Several of them, each with its field and fix."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class TrainingStopped(Exception):
    """A run that cannot usefully go on: the reason and what to do, in one message. Exit code 1."""


class RunConfig(Section):
    name: str = "run"
    seed: int = 0
    threads: int = Field(0, ge=0, description="torch threads of this process; 0 = torch's default")
    trackers: list[str] = Field([], description="any of tensorboard, wandb, trackio")


class ScratchConfig(Section):
    """Architecture of a Qwen3 initialised from nothing, with a tokenizer trained on the SFT data."""

    vocab_size: int = Field(900, ge=300)
    hidden_size: int = 96
    num_layers: int = 3
    num_heads: int = 6
    num_kv_heads: int = 3
    intermediate_size: int = 192


class ModelConfig(Section):
    path: str = Field("scratch", description="'scratch', a local Hugging Face directory, or a hub name")
    template: str = Field(
        "model",
        description="'model' (its own), 'compact', 'llama3', 'qwen3', 'rstar2', 'smollm2', or a .jinja file",
    )
    thinking: Literal["keep", "refuse"] = Field(
        "refuse",
        description="what to do with a template that changes <think> blocks of earlier turns: keep what the "
        "policy wrote in the context, or refuse the template",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of forward and backward; the learner's weights and moments are float32"
    )
    activation_checkpointing: bool = Field(
        False, description="compute a layer's activations again in backward instead of keeping them"
    )
    scratch: ScratchConfig = ScratchConfig()


class ToolConfig(Section):
    kind: Literal["python", "jupyter"] = Field(
        "python", description="a program per call, or cells of one live interpreter per trajectory"
    )
    sandbox: Literal["local", "redis"] = Field(
        "local",
        description="where programs run: on this machine, or by the workers (`rocstar sandbox worker`) at "
        "the Redis of ROCSTAR_REDIS_URL",
    )
    text: Literal["brief", "plain", "rstar2"] = Field("plain", description="how results are put in words")
    flavour: str = Field(
        "stdlib",
        description="what is imported beforehand: stdlib, numeric (numpy and sympy), scientific (scipy too), "
        "or auto: chosen by what each program imports",
    )
    wall_s: float = Field(4.0, gt=0)
    memory_mb: int = Field(512, ge=64)
    max_output_tokens: int = Field(256, ge=8, description="longer results are cut in the middle")
    max_parallel_calls: int = Field(4, ge=1, description="calls executed per turn; more are an error")

    @model_validator(mode="after")
    def _a_notebook_has_one_flavour(self) -> ToolConfig:
        if self.kind == "jupyter" and self.flavour == "auto":
            raise ValueError(
                "flavour = 'auto' chooses for each program, and an interpreter that lives (kind = 'jupyter') "
                "keeps what it began with; name a flavour"
            )
        if self.kind == "jupyter" and self.sandbox == "redis":
            raise ValueError(
                "sandbox = 'redis' runs single programs, and kind = 'jupyter' needs interpreters that live; "
                "set sandbox = 'local' or kind = 'python'"
            )
        return self


class DataConfig(Section):
    """Where tasks come from: reasoning-gym families, a JSONL or Parquet file, or a hub data set."""

    source: str = Field(description="'reasoning_gym', a path, or 'hub:NAME'")
    families: dict[str, dict[str, Any]] = Field({}, description="reasoning-gym family -> its options")
    size: int = Field(0, ge=0, description="tasks per family, or rows to take; 0 = all rows")
    limit: int = Field(0, ge=0, description="keep so many, families in turn; 0 = all")
    seed: int = 0
    split: str = "train"
    question: str = Field(
        "question", description="field of the row that holds the question: text, or a list of chat messages"
    )
    answer: str = Field("answer", description="field of the row that holds the answer")

    @model_validator(mode="after")
    def _families_belong_to_reasoning_gym(self) -> DataConfig:
        if self.source == "reasoning_gym" and (not self.families or not self.size):
            raise ValueError(
                "source = 'reasoning_gym' needs families (at least one) and size (tasks per family)"
            )
        if self.source != "reasoning_gym" and self.families:
            raise ValueError("families belong to source = 'reasoning_gym' only")
        return self


class SftConfig(Section):
    """Cold start: next-token loss on assistant tokens. steps = 0 skips it."""

    steps: int = Field(0, ge=0)
    data: str = Field("demonstrations", description="'demonstrations', or a chat JSONL file")
    num_demonstrations: int = Field(12_000, ge=1)
    demonstration_tasks: DataConfig | None = None
    batch_size: int = Field(32, ge=1)
    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: float = Field(5e-6, gt=0)
    warmup_steps: int = Field(30, ge=0)
    decay_fraction: float = Field(0.4, ge=0, le=1, description="last part of the steps, linear to 2%")
    digit_weight: float = Field(0.0, ge=0, description="extra weight of the mean loss over digit tokens")
    max_tokens: int = Field(2048, ge=8, description="longer conversations are skipped and counted")


class RlConfig(Section):
    tasks_per_step: int = Field(8, ge=1)
    rollouts_per_task: int = Field(32, description="N, generated")
    group_size: int = Field(16, description="G, kept")
    roc_mode: Literal["paper", "sort", "uniform", "none"] = "paper"
    roc_eps: float = Field(0.1, gt=0)
    roc_min_each: int = Field(2, ge=1, description="at least so many of each sign, where they exist")
    temperature: float = Field(1.0, gt=0)
    lr: float = Field(1e-6, gt=0)
    warmup_steps: int = Field(20, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    grad_clip: float = Field(1.0, gt=0)
    num_updates_per_batch: int = Field(1, ge=1, description="with 1 the ratio is 1 and the clip cannot act")
    max_staleness: int = Field(
        1,
        ge=0,
        description="versions between a token and the learner at most: rollouts go on while it learns; "
        "0 = in turns, and the default with engine.deterministic",
    )
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    tokens_per_microbatch: int = Field(8192, ge=16)

    @model_validator(mode="after")
    def _groups_make_sense(self) -> RlConfig:
        if self.group_size < 2:
            raise ValueError(
                f"group_size = {self.group_size}: an advantage compares siblings; set it to 2 or more"
            )
        if self.group_size > self.rollouts_per_task:
            raise ValueError(
                f"group_size = {self.group_size} keeps more than rollouts_per_task = "
                f"{self.rollouts_per_task} generates; lower group_size or raise rollouts_per_task"
            )
        if self.roc_mode == "none" and self.group_size != self.rollouts_per_task:
            raise ValueError("roc_mode = 'none' keeps all it generates: set rollouts_per_task = group_size")
        return self


class OffPolicyConfig(Section):
    """What to do where the rollout's probabilities are not the learner's (train/algorithm/off_policy.py)."""

    correction: Literal["none", "token", "sequence", "icepop"] = Field(
        "token",
        description="factor of a token's loss, from r = learner / rollout probability: none, min(r, cap), "
        "min(product of r over the trajectory, cap), or r within [floor, cap] and else 0",
    )
    cap: float = Field(2.0, gt=0, allow_inf_nan=False)
    floor: float = Field(0.5, ge=0, description="icepop only")
    gate_kl: float = Field(
        0.05, gt=0, description="nats; a step beyond it, or beyond the ratio, is a bad one"
    )
    gate_ratio_p99: float = Field(2.0, gt=1)
    gate_steps: int = Field(3, ge=0, description="bad steps in a row that pause the optimizer; 0 = never")

    @model_validator(mode="after")
    def _bounds_make_an_interval(self) -> OffPolicyConfig:
        if self.floor >= self.cap:
            raise ValueError(
                f"floor = {self.floor} is not below cap = {self.cap}: no ratio lies between them"
            )
        return self


class StageConfig(Section):
    """One RL stage: its own limits, data and steps."""

    name: str = "stage1"
    steps: int = Field(ge=0)
    max_response_tokens: int = Field(ge=1, description="all turns and tool results of a trajectory")
    max_turns: int = Field(ge=1)
    data: DataConfig | None = Field(None, description="None = the tasks of the stage before")
    filter_rollouts: int = Field(0, ge=0, description="k > 0: drop tasks solved k times out of k first")
    reset_optimizer: bool = False


class EvalConfig(Section):
    data: DataConfig | None = None
    samples_per_task: int = Field(4, ge=1)
    temperature: float = Field(1.0, ge=0)
    max_response_tokens: int = Field(0, ge=0, description="0 = as the last stage")
    max_turns: int = Field(0, ge=0, description="0 = as the last stage")
    every: int = Field(0, ge=0, description="also every so many RL steps; 0 = only before and after")


class CheckpointConfig(Section):
    every: int = Field(0, ge=0, description="RL steps; 0 = only at the end of a stage")
    keep_last: int = Field(2, ge=1)
    keep_every: int = Field(0, ge=0, description="also keep for good those of every so many steps; 0 = none")


class Recipe(Section):
    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    tool: ToolConfig = ToolConfig()
    sft: SftConfig = SftConfig()
    rl: RlConfig = RlConfig()
    off_policy: OffPolicyConfig = OffPolicyConfig()
    stages: list[StageConfig] = Field([])
    eval: EvalConfig = EvalConfig()
    engine: EngineConfig = EngineConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="before")
    @classmethod
    def _lockstep_is_synchronous(cls, raw: Any) -> Any:
        """Rollouts beside a learner depend on timing, which lockstep is there to exclude."""
        engine = raw.get("engine") if isinstance(raw, Mapping) else None
        rl = raw.get("rl", {}) if isinstance(raw, Mapping) else None
        if not (
            isinstance(engine, Mapping) and engine.get("deterministic") is True and isinstance(rl, Mapping)
        ):
            return raw
        return {**raw, "rl": {"max_staleness": 0, **rl}}

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Recipe:
        if self.engine.deterministic and self.rl.max_staleness:
            raise ValueError(
                f"rl.max_staleness = {self.rl.max_staleness} lets rollouts and learner run beside each "
                "other, which engine.deterministic = true excludes; set one of them to 0 or false"
            )
        if self.stages and self.stages[0].data is None:
            raise ValueError("stages.0.data is missing: the first stage must say where its tasks come from")
        if self.sft.steps and self.sft.data == "demonstrations" and self.sft.demonstration_tasks is None:
            raise ValueError("sft.demonstration_tasks is missing: demonstrations need tasks to solve")
        return self


def with_eval_limits(recipe: Recipe) -> Recipe:
    """The recipe with the limits that an evaluation takes from the last stage, as its own."""
    if not recipe.stages:
        return recipe
    last, config = recipe.stages[-1], recipe.eval
    limits = {
        "max_response_tokens": config.max_response_tokens or last.max_response_tokens,
        "max_turns": config.max_turns or last.max_turns,
    }
    return recipe.model_copy(update={"eval": config.model_copy(update=limits)})


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read, override, validate. Raises ConfigError with the value, the reason and the fix.

    Relative paths become absolute: those of the file start at its folder, those of overrides, and those of a
    shipped recipe that is called by its name, at the current directory.
    """
    named, path = Path(path), _find_recipe(Path(path))
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"recipe {str(path)!r} does not exist; give a TOML file, or the name of a shipped one: "
            f"{', '.join(shipped_recipes())}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {str(path)!r} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"recipe {str(path)!r} is not valid TOML: {error}") from None
    for option in overrides:
        apply_override(raw, option)
    resolve_paths(raw, path.parent if path == named else Path(), overrides)
    return parse_recipe(raw, where=str(path))


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with rocstar."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def _find_recipe(path: Path) -> Path:
    """The file that is meant: itself, or where there is none the shipped recipe of that name."""
    shipped = RECIPES / f"{path.name.removesuffix('.toml')}.toml"
    is_name = len(path.parts) == 1 and shipped.stem in shipped_recipes()
    return shipped if is_name and not path.is_file() else path


def parse_recipe(raw: Mapping[str, Any], *, where: str) -> Recipe:
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(
            f"{where}: " + "; ".join(explain(e, Recipe, surface()) for e in error.errors())
        ) from None


def apply_override(raw: dict[str, Any], option: str) -> None:
    """`--a.b=c` sets raw['a']['b'] to c, read as a TOML value, or as a string where that fails."""
    body = option.removeprefix("--")
    key, sign, text = body.partition("=")
    if not sign or not key or not option.startswith("--"):
        raise ConfigError(f"option {option!r} is not of the form --section.field=value")
    value = _read_value(text)
    node: Any = raw
    *parents, last = key.split(".")
    for part in parents:
        node = _descend(node, part, option)
    if isinstance(node, list):
        node[_index(node, last, option)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"option {option!r}: {'.'.join(parents)!r} is a value, not a section")


def _read_value(text: str) -> Any:
    try:
        table = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["v"] if len(table) == 1 else text  # a line break in the text can begin another key


def _descend(node: Any, part: str, option: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, part, option)]
    if isinstance(node, dict):
        return node.setdefault(part, {})
    raise ConfigError(f"option {option!r}: {part!r} lies below a value, not a section")


def _index(node: list[Any], part: str, option: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise ConfigError(
            f"option {option!r}: {part!r} is not one of the {len(node)} entries 0..{len(node) - 1}"
        )
    return int(part)


def surface() -> list[str]:
    """Every field of the recipe as a dotted name, a data source once; frozen by tests/config_surface.txt."""

    def walk(model: type[BaseModel], prefix: str) -> list[str]:
        names: list[str] = []
        for name, field in model.model_fields.items():
            options = [field.annotation, *getattr(field.annotation, "__args__", ())]
            nested = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
            if nested and nested[0] is DataConfig:
                names.append(f"{prefix}{name} = DATA")
            elif nested:
                names += walk(nested[0], f"{prefix}{name}.")
            else:
                names.append(f"{prefix}{name}")
        return names

    return walk(Recipe, "") + walk(DataConfig, "DATA.")


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe as TOML that loads back to the same object."""
    return "\n".join(_toml_table(recipe.model_dump(exclude_none=True), "")) + "\n"


def _toml_table(table: Mapping[str, Any], prefix: str) -> list[str]:
    lines = [
        f"{_toml_key(key)} = {_toml_value(value)}" for key, value in table.items() if not _is_table(value)
    ]
    for key, value in table.items():
        name = f"{prefix}{_toml_key(key)}"
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", *_toml_table(value, name + ".")]
        elif _is_table(value):
            for item in value:
                lines += ["", f"[[{name}]]", *_toml_table(item, name + ".")]
    return lines


def _is_table(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_string(key)


def _toml_string(text: str) -> str:
    # JSON's escapes are TOML's, but JSON leaves DEL as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items())
        return "{" + inside + "}"
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)  # inf and nan are TOML, JSON's Infinity is not
    return str(value)  # a date or a time
