"""[rl], [off_policy] and [[stages]] of a recipe: rollouts, selection and update of a step, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from rocstar.sandbox.command_line import suggest
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.paths import is_reference
from rocstar.train.recipe.section import (
    Attempts,
    Betas,
    Expert,
    LearningRate,
    Section,
    Share,
    Steps,
    Tasks,
    Temperature,
    Tokens,
    Turns,
    Unit,
)

ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "distill", "fork_loo", "treerl")
"""Advantages by name, in train/algorithm/advantages/; the last two, for rollouts that fork, in tree.py."""
ROLLOUT_LOSSES = ("cispo", "gspo", "dppo", "sapo")
"""Policy losses that start from the rollout's log-probs, so that they contain the importance weight."""
CONSTANTS: Final[Mapping[str, tuple[str, ...]]] = {
    "clip": ("clip_low", "clip_high"), **{name: (name,) for name in ROLLOUT_LOSSES}
}  # fmt: skip
"""Policy losses by name, a page each in train/algorithm/losses/, and the fields of [rl] with their constants."""
FORKS = ("none", "error", "turn")
MOST_BRANCHES = 63
Trajectories = Annotated[int, Unit("trajectories")]
Ratio = Annotated[float, Unit("ratio")]
Probability = Annotated[float, Unit("probability")]
Slope = Annotated[float, Unit("slope")]


class _RatioBounds(Section):
    low: float
    high: float

    @model_validator(mode="after")
    def _are_an_interval(self) -> _RatioBounds:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} is not below high = {self.high}; both are bounds of the ratio itself")
        return self


class CispoConfig(_RatioBounds):
    """Bounds of the ratio current / rollout that weights a token (train/algorithm/losses/cispo.py)."""

    low: Expert[Ratio] = Field(0.0, ge=0, description="smallest weight: the ratio itself, not its distance from 1")
    high: Expert[Ratio] = Field(5.0, gt=0, description="largest weight: the ratio itself, not its distance from 1")


class GspoConfig(_RatioBounds):
    """Bounds of a sequence's mean ratio current / rollout (train/algorithm/losses/gspo.py)."""

    low: Expert[Ratio] = Field(0.9997, ge=0, description="a sequence with A < 0 and a smaller ratio is stopped")
    high: Expert[Ratio] = Field(1.0004, gt=0, description="a sequence with A > 0 and a larger ratio is stopped")


class DppoConfig(Section):
    """Bounds of the difference of current and rollout probability (train/algorithm/losses/dppo.py)."""

    low: Expert[Probability] = Field(0.2, ge=0, le=1, description="a token with A < 0 and a larger fall is stopped")
    high: Expert[Probability] = Field(0.2, ge=0, le=1, description="a token with A > 0 and a larger rise is stopped")


class SapoConfig(Section):
    """Slopes of the gate of the ratio current / rollout (train/algorithm/losses/sapo.py)."""

    tau_positive: Expert[Slope] = Field(1.0, gt=0, description="where A > 0; a larger one fades sooner")
    tau_negative: Expert[Slope] = Field(1.05, gt=0, description="where A <= 0")


class RlConfig(Section):
    """Rollouts, selection and update of an RL step."""

    tasks_per_step: Tasks = Field(8, ge=1, description="groups of a step")
    rollouts_per_task: Trajectories = Field(32, description="N: siblings that are generated per task")
    group_size: Trajectories = Field(16, description="G: siblings of these that are kept and learned")
    roc_mode: Expert[Literal["paper", "sort", "uniform", "none"]] = Field(
        "paper",
        description="how G of N are chosen: correct ones by a draw against their penalty (paper), by a sort "
        "(sort), all by a uniform draw (uniform), or none are left out",
    )
    roc_eps: Expert[Annotated[float, Unit("penalty")]] = Field(
        0.1, gt=0, description="paper: a correct trajectory is drawn with weight 1 / (roc_eps + its penalty)"
    )
    roc_min_each: Expert[Trajectories] = Field(2, ge=1, description="at least so many of each sign, where they exist")
    end_early: Expert[bool] = Field(
        False,
        description="a sibling whose outcome cannot change which siblings are kept ends before it is done, without a "
        "reward (docs/reference/contracts.md, 8): the kept ones are the same, reward/mean is partial",
    )
    timeouts: Expert[Literal["leave_out", "negative"]] = Field(
        "leave_out",
        description="trajectories beyond engine.trajectory_timeout_s: left out, or of reward 0 if the policy "
        "was at work until then (docs/reference/contracts.md, 16)",
    )
    refill: Expert[Annotated[int, Unit("rounds")]] = Field(
        0,
        ge=0,
        description="most rounds of further tasks in a step, each with a task per missing group with signal; "
        "tasks of medium difficulty gain weight",
    )
    retire_above: Expert[Share] = Field(
        1.0,
        gt=0.5,
        le=1,
        description="a task whose rate of correct attempts (posterior mean, discounted) reaches it comes no more, "
        "unless only tasks_per_step tasks are left; 1 = never",
    )
    difficulty_floor: Expert[Share] = Field(
        1.0,
        ge=0.01,
        le=1,
        description="least share of epochs in which a task comes; tasks that are always or never solved come less "
        "often than others (train/algorithm/difficulty.py); 1 = each task in every epoch",
    )
    advantage: Expert[str] = Field(
        "grpo",
        description="'grpo', 'dr_grpo', 'rloo', 'reinforce_pp', 'distill', with forks 'fork_loo', 'treerl' "
        "(train/algorithm/advantages/), or 'module:function', looked for beside the recipe, then on sys.path",
    )
    length_penalty: Expert[Share] = Field(
        0.0,
        ge=0,
        le=1,
        description="of a group's mean reward, which its longest response loses before the advantages, others in "
        "proportion to the tokens that the policy wrote (train/algorithm/penalties.py)",
    )
    turn_penalty: Expert[Share] = Field(0.0, ge=0, le=1, description="the same by the number of turns")
    overlong_buffer: Expert[Tokens] = Field(
        0,
        ge=0,
        description="last tokens before stages.max_response_tokens within which the reward falls, by 1 at the limit",
    )
    fork: Expert[str] = Field(
        "none",
        description="where a rollout goes on several times: 'none', 'error' (behind a failed call), 'turn' (behind "
        "each turn with calls), or 'module:function' of a task and its turns so far",
    )
    fork_width: Expert[Annotated[int, Unit("continuations")]] = Field(
        2, ge=2, le=16, description="continuations at a fork, the original one included"
    )
    fork_depth: Expert[Annotated[int, Unit("forks")]] = Field(1, ge=1, le=4, description="forks on one path at most")
    fork_tokens: Expert[Tokens] = Field(
        0,
        ge=0,
        description="most tokens that all branches of one rollout add, tool results included: each may add its even "
        "share, and is cut there; 0 = up to stages.max_response_tokens",
    )
    temperature: Expert[Temperature] = Field(1.0, gt=0, description="of the policy's sampling, and of its loss")
    lr: LearningRate = Field(1e-6, gt=0, description="learning rate after the warm-up, then constant")
    warmup_steps: Expert[Steps] = Field(20, ge=0, description="first steps, in which the rate rises linearly")
    betas: Expert[Betas] = Field([0.9, 0.95], description="of AdamW: of the first and of the second moment")
    weight_decay: Expert[Annotated[float, Unit("factor")]] = Field(
        0.0, ge=0, description="of AdamW, on the matrices alone: norms, biases and embeddings do not decay"
    )
    grad_clip: Expert[Annotated[float, Unit("norm")]] = Field(
        1.0, gt=0, description="longer gradients are scaled down to this norm"
    )
    num_updates_per_batch: Expert[Annotated[int, Unit("updates")]] = Field(
        1, ge=1, description="optimizer updates of a step; with 1 the ratio is 1 and the clip cannot act"
    )
    max_staleness: Expert[Annotated[int, Unit("versions")]] = Field(
        1,
        ge=0,
        description="versions between a token and the learner at most: rollouts go on while it learns; "
        "0 = in turns, and the default with engine.deterministic",
    )
    loss: Expert[str] = Field(
        "clip",
        description="'clip', 'cispo', 'gspo', 'dppo', 'sapo' (train/algorithm/losses/), or 'module:function', "
        "looked for beside the recipe, then on sys.path; constants of another loss are an error",
    )
    clip_low: Expert[Ratio] = Field(0.2, gt=0, lt=1, description="clip: the ratio is clipped below 1 - clip_low")
    clip_high: Expert[Ratio] = Field(0.28, gt=0, description="clip: the ratio is clipped above 1 + clip_high")
    cispo: CispoConfig = CispoConfig()
    gspo: GspoConfig = GspoConfig()
    dppo: DppoConfig = DppoConfig()
    sapo: SapoConfig = SapoConfig()
    echo: Expert[Annotated[float, Unit("factor")]] = Field(
        0.0,
        ge=0,
        description="weight of the mean cross-entropy over the tokens of tool results, beside the policy loss (ECHO, "
        "arXiv 2605.24517; 0.1 there); 0 = they are not learned",
    )
    entropy_target: Expert[Annotated[float, Unit("nats per token")]] = Field(
        0.0,
        ge=0,
        description="after a step whose mean entropy is below it, the loss has a term -alpha * mean entropy "
        "(EntropyControl in train/learner/settings.py; 0.2 in Skywork-OR1, arXiv 2505.22312); 0 = no such term",
    )
    entropy_step: Expert[Annotated[float, Unit("factor per step")]] = Field(
        1e-4, gt=0, description="by which alpha rises after a step below the target, or falls, to 0 at least"
    )
    start_kl_every: Expert[Steps] = Field(
        0,
        ge=0,
        description="steps from one measure of the distance to the policy at the start of RL to the next "
        "(start_kl/mean); each rank then holds its part of that policy, 4 bytes a parameter; 0 = never",
    )
    tokens_per_microbatch: Tokens = Field(
        8192, ge=16, description="of one forward and backward: limits the learner's memory"
    )

    @model_validator(mode="after")
    def _the_advantage_is_known(self) -> RlConfig:
        if self.advantage not in ESTIMATORS and not is_reference(self.advantage):
            raise ValueError(
                f"advantage = {self.advantage!r} is not known; "
                f"{suggest(self.advantage, (*ESTIMATORS, 'module:function'))}"
            )
        return self

    @property
    def most_branches(self) -> int:
        """The bound for one rollout: fork_width to the power of fork_depth, less itself; 0 without forks."""
        return 0 if self.fork == "none" else int(self.fork_width**self.fork_depth) - 1

    @property
    def most_siblings(self) -> int:
        """The bound for one task: its rollouts and their branches."""
        return self.rollouts_per_task * (1 + self.most_branches)

    @model_validator(mode="after")
    def _the_fork_is_known_and_bounded(self) -> RlConfig:
        if self.fork not in FORKS and not is_reference(self.fork):
            raise ValueError(f"fork = {self.fork!r} is not known; {suggest(self.fork, (*FORKS, 'module:function'))}")
        if self.most_branches > MOST_BRANCHES:
            raise ValueError(
                f"fork_width = {self.fork_width} and fork_depth = {self.fork_depth} allow one rollout "
                f"{self.most_branches} branches, more than {MOST_BRANCHES}; lower one of them"
            )
        if 0 < self.fork_tokens < self.most_branches:
            raise ValueError(
                f"fork_tokens = {self.fork_tokens} is not a token for each of {self.most_branches} branches; raise "
                "it, or set it to 0"
            )
        return self

    @property
    def uses_rewards(self) -> bool:
        """False where a teacher's log-probs are the advantages: every scored trajectory is learned."""
        return self.advantage != "distill"

    @model_validator(mode="after")
    def _the_loss_is_known_and_reads_its_constants(self) -> RlConfig:
        if self.loss not in CONSTANTS and not is_reference(self.loss):
            known = suggest(self.loss, (*CONSTANTS, "module:function"))
            raise ValueError(f"loss = {self.loss!r} is not known; {known}")
        for loss, names in CONSTANTS.items():
            given = [name for name in names if loss != self.loss and name in self.model_fields_set]
            if given:
                value = getattr(self, given[0])
                shown = value.model_dump(exclude_unset=True) if isinstance(value, Section) else value
                raise ValueError(
                    f"{given[0]} = {shown} is read by loss = {loss!r} alone, and loss = {self.loss!r}; remove it, or "
                    f"set loss = {loss!r}"
                )
        return self

    @model_serializer(mode="wrap")
    def _leave_out_unread_constants(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """So that a written recipe loads again."""
        unread = {name for loss, names in CONSTANTS.items() for name in names if loss != self.loss}
        return {name: value for name, value in handler(self).items() if name not in unread}

    def constants(self) -> dict[str, float]:
        """Return the constants of the loss by name; an own function has none."""
        found: dict[str, Any] = {name: getattr(self, name) for name in CONSTANTS.get(self.loss, ())}
        return dict(found.get(self.loss, found))

    @model_validator(mode="after")
    def _groups_make_sense(self) -> RlConfig:
        if self.group_size < 2:
            raise ValueError(f"group_size = {self.group_size}: an advantage compares siblings; set it to 2 or more")
        if self.group_size > self.rollouts_per_task:
            raise ValueError(
                f"group_size = {self.group_size} keeps more than rollouts_per_task = "
                f"{self.rollouts_per_task} generates; lower group_size or raise rollouts_per_task"
            )
        if self.roc_mode == "none" and self.group_size != self.rollouts_per_task:
            raise ValueError("roc_mode = 'none' keeps all it generates: set rollouts_per_task = group_size")
        needing = {
            "refill": self.refill > 0,
            "retire_above": self.retire_above < 1,
            "difficulty_floor": self.difficulty_floor < 1,
            "advantage": not self.uses_rewards,
            "fork": self.fork != "none",
        }
        if self.end_early and any(needing.values()):
            name = next(name for name, needs in needing.items() if needs)
            raise ValueError(
                f"{name} = {getattr(self, name)!r} needs the rewards of all siblings, and end_early leaves some "
                f"without; set end_early = false, or leave {name} out"
            )
        return self


class OffPolicyConfig(Section):
    """The correction for different probabilities of rollout and learner (train/algorithm/off_policy.py)."""

    correction: Expert[Literal["none", "token", "sequence", "icepop", "sequence_mask", "negative_mask"]] = Field(
        "token",
        description="factor of a token's loss from learner / rollout probability, a table in "
        "docs/reference/learner.md; the default is 'none' with an rl.loss that starts from the rollout",
    )
    cap: Expert[Ratio] = Field(2.0, gt=0, allow_inf_nan=False, description="the largest factor")
    floor: Expert[Ratio] = Field(
        0.5, ge=0, description="icepop: below it a token is left out; negative_mask: a sequence with A < 0"
    )
    gate_kl: Expert[Annotated[float, Unit("nats")]] = Field(
        0.05, gt=0, description="mean mismatch; a step beyond it, or beyond the ratio, is a bad one"
    )
    gate_ratio_p99: Expert[Ratio] = Field(
        2.0, gt=1, description="what 99% of the tokens' ratios must lie within; a step beyond it is a bad one"
    )
    gate_steps: Expert[Steps] = Field(3, ge=0, description="bad steps in a row that pause the optimizer; 0 = never")

    @model_validator(mode="after")
    def _bounds_make_an_interval(self) -> OffPolicyConfig:
        if self.floor >= self.cap:
            raise ValueError(f"floor = {self.floor} is not below cap = {self.cap}: no ratio lies between them")
        return self


class TeacherConfig(Section):
    """The teacher of rl.advantage = 'distill'; its tokenizer is the policy's."""

    url: Expert[str] = Field(
        "", description="of an endpoint that scores prompts, up to and with /v1; its key: ROCSTAR_TEACHER_KEY alone"
    )
    model: Expert[str] = Field("", description="the model's name at the endpoint")


def check_teacher(teacher: TeacherConfig, rl: RlConfig) -> None:
    """Raise ValueError for a recipe that cannot learn from the teacher's log-probs, or does not."""
    if rl.uses_rewards and teacher.url:
        raise ValueError(
            f"teacher.url = {teacher.url!r} is read with rl.advantage = 'distill' alone; set that, or remove [teacher]"
        )
    if rl.uses_rewards:
        return
    needs = "rl.advantage = 'distill' needs"
    for name in ("refill", "length_penalty", "turn_penalty", "overlong_buffer"):
        if value := getattr(rl, name):
            raise ValueError(f"rl.{name} = {value} changes with rewards, and {needs} none; leave it out")
    if teacher.url.partition("://")[0] not in ("http", "https"):
        raise ValueError(
            f"{needs} a teacher, and teacher.url = {teacher.url!r} is no address; it begins with http:// or https:// "
            "and ends with /v1"
        )
    if "@" in teacher.url.partition("//")[2].partition("/")[0]:
        raise ValueError("teacher.url holds a name or a password, which no recipe keeps; give ROCSTAR_TEACHER_KEY")
    if rl.temperature != 1:
        raise ValueError(f"{needs} rl.temperature = 1, that of the teacher's log-probs, not {rl.temperature}")
    if rl.timeouts != "leave_out":
        raise ValueError(f"{needs} rl.timeouts = 'leave_out': the teacher scores no trajectory that was cut off")


class StageConfig(Section):
    """One RL stage: its own limits, data and steps."""

    name: Expert[str] = Field("stage1", description="as metrics and records call it")
    steps: Steps = Field(ge=0, description="RL steps of the stage")
    max_response_tokens: Tokens = Field(ge=1, description="all turns and tool results of a trajectory")
    max_turns: Turns = Field(ge=1, description="turns of a trajectory at most; each may call the tool")
    data: DataConfig | None = Field(None, description="its tasks; left out = of the stage before, or the environments")
    filter_rollouts: Expert[Attempts] = Field(
        0, ge=0, description="k > 0: before the stage, drop tasks solved k times out of k"
    )
    reset_optimizer: Expert[bool] = Field(False, description="begin the stage with fresh moments and warm-up")
