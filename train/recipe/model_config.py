"""[model] of a recipe: the trained model, and the text form of its conversations."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rocstar.train.recipe.section import Expert, Section, Unit

Dimensions = Annotated[int, Unit("dimensions")]
Heads = Annotated[int, Unit("heads")]
QUESTION = "{question}"
"""Where `task_prompt` shows the question of a task."""


class ScratchConfig(Section):
    """Architecture of a Qwen3 initialised from nothing, with a tokenizer trained on the SFT data."""

    vocab_size: Expert[Annotated[int, Unit("tokens")]] = Field(
        900, ge=300, description="size of the vocabulary that the tokenizer learns"
    )
    hidden_size: Expert[Dimensions] = Field(96, ge=1, description="width of the residual stream")
    num_layers: Expert[Annotated[int, Unit("layers")]] = Field(3, ge=1, description="decoder layers")
    num_heads: Expert[Heads] = Field(6, ge=1, description="attention heads; they divide hidden_size")
    num_kv_heads: Expert[Heads] = Field(3, ge=1, description="heads of keys and values; they divide num_heads")
    intermediate_size: Expert[Dimensions] = Field(192, ge=1, description="width inside the MLP")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"hidden_size = {self.hidden_size} does not split into {self.num_heads} heads of even size; "
                f"make it a multiple of {2 * self.num_heads}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads = {self.num_heads} is no multiple of num_kv_heads = {self.num_kv_heads}; each "
                "key/value head serves the same number of query heads"
            )
        return self


class ModelConfig(Section):
    """The model that is trained."""

    path: str = Field("scratch", description="'scratch', a local Hugging Face directory, or a hub name")
    template: str = Field(
        "model",
        description="chat template: 'model' (its own), 'compact', 'llama3', 'qwen3', 'rstar2', 'smollm2', or "
        "a .jinja file",
    )
    task_prompt: Expert[str] = Field(
        QUESTION, description="the user's message of tasks, and of evaluations asked like them: text around {question}"
    )
    thinking: Expert[Literal["keep", "refuse"]] = Field(
        "refuse",
        description="for a template that changes `<think>` blocks of earlier turns: keep the policy's text "
        "in the context, or refuse the template",
    )
    thoughts: Expert[Literal["skip", "read"]] = Field(
        "skip",
        description="tool calls and answers inside `<think>`: 'skip' = neither executed nor judged, 'read' = both",
    )
    date: Expert[str] = Field(
        "", description="today's date for a template that shows it, as '2026-01-31'; '' = the day of the run's start"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of forward and backward; the learner's weights and moments are float32"
    )
    head_dtype: Expert[Literal["model", "float32"]] = Field(
        "model",
        description="of the logits in learner and engine: 'model' = dtype, 'float32' = unrounded: less "
        "mismatch, and three times the memory per logit of bfloat16",
    )
    activation_checkpointing: Expert[Literal["auto", "on", "off"]] = Field(
        "auto",
        description="compute a layer's activations again in backward instead of keeping them; 'auto' = where "
        "those of rl.tokens_per_microbatch would not fit",
    )
    sharding: Expert[Literal["all", "node"]] = Field(
        "all",
        description="ranks over which the learner's weights and moments are split: all, or those of a node, "
        "with a copy on every node",
    )
    offload_moments: Expert[bool] = Field(
        False,
        description="keep the optimizer's moments, and with [lora] the frozen weights, in CPU memory while "
        "servers take the learner's place",
    )
    scratch: ScratchConfig = Field(ScratchConfig(), description="architecture for path = 'scratch'")

    @field_validator("task_prompt")
    @classmethod
    def _has_one_question(cls, value: str) -> str:
        if value.count(QUESTION) != 1:
            raise ValueError(f"task_prompt = {value!r} must contain {QUESTION} once")
        return value

    @field_validator("activation_checkpointing", mode="before")
    @classmethod
    def _read_yes_or_no(cls, value: Any) -> Any:
        """True and false, as recipes said it before there was 'auto'."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The matrices of a Llama-like layer."""


class LoraConfig(Section):
    """Low-rank adapters (LoRA): the model stays as it is, and alpha / rank times their product is added.

    There is no dropout: the log-probs of the learner would be of another policy than the one that rolls out.
    """

    rank: Expert[Annotated[int, Unit("dimensions")]] = Field(
        0, ge=0, description="rank of the adapters that learn beside frozen weights; 0 = all weights learn"
    )
    alpha: Expert[Annotated[int, Unit("factor")]] = Field(
        32, gt=0, description="scale of the adapters' output: alpha / rank"
    )
    targets: Expert[list[str]] = Field(
        list(LINEARS), min_length=1, description="names of the linear modules that get an adapter"
    )

    @field_validator("targets")
    @classmethod
    def _are_of_layers(cls, targets: list[str]) -> list[str]:
        for name in targets:
            if name in ("lm_head", "embed_tokens"):
                raise ValueError(f"{name!r} may not be adapted: head and embedding are served as they are")
            if "." in name or not name:
                raise ValueError(f"{name!r} is not the last part of a module's name, as 'q_proj' is")
        if len(set(targets)) < len(targets):
            raise ValueError("a name occurs twice")
        return targets
