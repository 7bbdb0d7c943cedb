"""The nouns of the engine. Token ids are the only truth; text is a view of them.

Shapes: a trajectory's columns `ids` and `logprobs` have one entry per token, prompt first.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
LogProbs = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Origin(StrEnum):
    """The writer of a token. Only `policy` tokens carry loss. `prompt` is text of the user, first and
    later."""

    prompt = "prompt"
    policy = "policy"
    tool = "tool"


class FinishReason(StrEnum):
    """Why a trajectory ended (not to be confused with a tool status)."""

    answered = "answered"
    max_turns = "max_turns"
    max_tokens = "max_tokens"
    tool_budget = "tool_budget"
    aborted = "aborted"
    ended_early = "ended_early"


TRUNCATED = frozenset({FinishReason.max_tokens, FinishReason.max_turns, FinishReason.tool_budget})
"""A trajectory that ended for one of these did not finish its answer: scored 0, kept in its group."""


HIDDEN = "hidden"
"""The key of a task's `meta` that marks a task whose licence asks not to show it. Views and exports of
records omit its attempts, which repeat the question, unless asked to reveal them."""

MARKS_OF_ENVIRONMENT = frozenset({"environment", "row"})
"""A task whose `meta` has both is attempted in the environment of that name, which gets the row."""

GRADER_LIMIT = "grader_limit"
"""The method of an answer on which the built-in grader did not finish: it earned 0."""
REWARD_TIMEOUT = "reward_timeout"
"""The kind of failure of a trajectory whose custom reward function did not finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One dataset row: a question, its ground truth, where it came from.

    `context` holds the chat messages before the question: a system message, earlier turns, each an object of
    JSON values that a chat template takes. `meta` goes to the scorer untouched (a reasoning-gym entry, for
    example) and never to the policy.
    """

    id: str
    source: str
    question: str
    answer: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    context: tuple[Mapping[str, Any], ...] = ()

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """Return the messages for the policy: the context, and the question as the user's last message."""
        return [*self.context, {"role": "user", "content": self.question}]

    @property
    def environment(self) -> str | None:
        """Return the name of its environment; None without one."""
        return str(self.meta["environment"]) if self.meta.keys() >= MARKS_OF_ENVIRONMENT else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One parsed request of the policy. `malformed` says why it could not be decoded, else None."""

    name: str | None
    arguments: Mapping[str, Any] | None
    malformed: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """From one moment to another, in seconds since a trajectory began."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTimes:
    """The times of a turn, all on the event loop's clock; the rest between them is waiting."""

    written: Span
    """The policy was asked, to its answer being there: places in queues included."""
    calls: tuple[Span | None, ...] = ()
    """Seconds of each result; None for a call without a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryTimes:
    """When a trajectory happened: for people who look at a run, and for nothing that is learned.

    Spans count from `began`, which alone is wall time: of another machine, by that machine's clock.
    """

    began: float
    """Seconds since 1970."""
    ended_s: float
    """When its outcome was there."""
    granted_s: float | None = None
    """When an engine first gave it a place; None of one that never got any."""
    turns: tuple[TurnTimes, ...] = ()
    """The times of each completed turn."""
    judged: Span | None = None
    """None of one that was never judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The answer to a tool call: a status and the text for the policy.

    `is_error` = the status is not ok, or the call was undecodable, of an unknown tool, or had bad
    arguments, or came after more calls than one turn may make (contract 6). `status` is a sandbox status,
    or `malformed_call`, `unknown_tool`, `bad_arguments`, `too_many_calls`.

    For a live interpreter: `restarted`: an earlier cell ended it, this one ran in a fresh one, and the text
    says so. `replayed`: it was lost without a fault of the policy and rebuilt from its cells, unseen.
    """

    status: str
    is_error: bool
    text: str
    restarted: bool = False
    replayed: bool = False
    ran: Span | None = field(default=None, compare=False)
    """When its tool had it, counted from the opening of the trajectory's tools; None of a call that no tool
    had. A record has it among the trajectory's times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens [start, end) of a trajectory and who wrote them."""

    start: int
    end: int
    origin: Origin


CALL_FORMS = ("hermes", "xml", "llama", "pythonic", "lfm", "mistral")
"""The names of the call forms; chat/callforms.py reads each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnForm:
    """How the text of a turn is read (chat/toolcalls.py).

    Attributes:
        calls: name of the call form, one of CALL_FORMS.
        skips_thoughts: a call or an answer within a thought is neither executed nor judged.
        opens_thought: the template's text before the turn opens a thought.
    """

    calls: str = "hermes"
    skips_thoughts: bool = True
    opens_thought: bool = False

    def __post_init__(self) -> None:
        if self.calls not in CALL_FORMS:
            raise ValueError(f"call form {self.calls!r:.40} is none of {', '.join(CALL_FORMS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One completion of the policy and the tool results that answer it."""

    start: int
    end: int
    text: str
    stopped: bool
    """The policy ended the turn itself (a stop token), as against being cut by a limit."""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    form: TurnForm = TurnForm()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Tokens [start, end) were sampled from policy version `version`."""

    start: int
    end: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The result of a foreign agent: an answer, a reward, or neither."""

    answer: str | None = None
    reward: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.answer, str | None):
            raise ValueError(f"answer is {self.answer!r:.80}; give a text or null")
        is_number = isinstance(self.reward, int | float) and math.isfinite(self.reward)
        if self.reward is not None and not is_number:
            raise ValueError(f"reward is {self.reward!r:.80}; give a finite number or null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The view of a judge on a trajectory: the task, and all turns of the policy."""

    task: Task
    turns: tuple[Turn, ...]
    """Every completion of the policy with its tool calls and their results, in order."""
    is_truncated: bool
    """A limit ended the attempt before the policy had finished its answer."""
    given: Given | None = None
    """The result of a foreign agent or an environment; None of the built-in turn loop."""

    @property
    def text(self) -> str:
        """Everything that the policy wrote, turn by turn, without any tool output."""
        return "\n".join(turn.text for turn in self.turns)

    @property
    def final_text(self) -> str:
        """The policy's text of its last turn; empty if there is none."""
        return self.turns[-1].text if self.turns else ""


_BY_REWARD: Any = None
"""Stands for a verdict that follows from the reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A trajectory whose answer was judged (contract 7).

    `reward` is any finite number. `is_correct` is the side of Resample-on-Correct and the value that an
    evaluation counts; by default a reward of exactly 1 is correct, as in records without this field.
    """

    reward: float
    method: str
    is_correct: bool = _BY_REWARD

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise ValueError(f"reward must be a finite number, got {self.reward!r}")
        if self.is_correct is _BY_REWARD:
            object.__setattr__(self, "is_correct", self.reward == 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A trajectory lost to a failure of ours. It has no reward and cannot reach an advantage."""

    kind: str
    retryable: bool
    detail: str


Outcome = Scored | Failed


BRANCH = re.compile(r"[1-9]\d*\.[1-9]\d*(/[1-9]\d*\.[1-9]\d*)*")
"""`TrajectoryKey.branch` of a branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryKey:
    """Names one attempt. Sampling noise is a function of it and the token position (contract 4)."""

    seed: int
    step: int
    task_id: str
    sibling: int
    branch: str = ""
    """Empty for a root; "3.1" of the first other continuation behind turn 3 of a root, "3.1/5.2" of the second
    behind turn 5 of that one."""

    def __str__(self) -> str:
        return f"s{self.step}/{self.task_id}/{self.sibling}" + (f"~{self.branch}" if self.branch else "")

    @property
    def order(self) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Sorts the trajectories of a group: roots by number, each before its branches."""
        forks = self.branch.split("/") if self.branch else ()
        return self.sibling, tuple(tuple(map(int, fork.split("."))) for fork in forks)

    def behind(self, turn: int, number: int) -> TrajectoryKey:
        """Return the key of its other continuation `number` (from 1) behind turn `turn` (from 1)."""
        fork = f"{turn}.{number}"
        return replace(self, branch=f"{self.branch}/{fork}" if self.branch else fork)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where a branch leaves its parent: the first `turns` turns and tokens [0, `start`) are the parent's."""

    parent: str
    """The parent's `TrajectoryKey.branch`."""
    turns: int
    start: int


def logprob_column(values: Sequence[float | None] | LogProbs) -> LogProbs:
    """Return log-probs as a read-only column: NaN for None; float32 if that keeps every bit."""
    if isinstance(values, np.ndarray) and values.dtype == np.float32:
        given: LogProbs = _frozen(values)
        return given
    column = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore"):
        singles = column.astype(np.float32)
    kept: LogProbs = _frozen(singles if np.array_equal(column, singles, equal_nan=True) else column)
    return kept


def _frozen(column: npt.NDArray[Any]) -> Any:
    if column.flags.writeable:
        column = column.view()
        column.flags.writeable = False
    return column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """All turns of one attempt at a task, as one sequence of tokens or several, one behind the other.

    An agent that edits its history, or runs another one, samples in several sequences: `starts` has the index of
    each one's first token. Of a token that several sequences contain, the first one has the sample; in the others
    it is context, which is `prompt`.

    Columns may be any sequence, with None for a missing log-prob; they become read-only arrays.

    Invariants: segments tile [0, len(ids)) in order, the first of each sequence is its prompt; logprobs[i] is NaN
    unless token i was written by the policy; every policy token lies in exactly one version span.
    """

    key: TrajectoryKey
    task: Task
    ids: Any
    """`Ids`."""
    logprobs: Any
    """`LogProbs`."""
    segments: tuple[Segment, ...]
    version_spans: tuple[VersionSpan, ...]
    turns: tuple[Turn, ...]
    finish_reason: FinishReason
    outcome: Outcome
    times: TrajectoryTimes | None = None
    """None in old records without times."""
    starts: tuple[int, ...] = (0,)
    given: Given | None = None
    """The result of a foreign agent; None of the built-in turn loop."""
    fork: Fork | None = None
    """None of a root. `turns` and the columns of a branch hold the parent's part too, which the parent trains."""

    def __post_init__(self) -> None:
        """Convert sequences to columns. Raise ValueError for an invalid token id, or invalid starts."""
        prompts = {s.start for s in self.segments if s.origin is Origin.prompt}
        if self.starts != (0,) and not (
            self.starts[0] == 0 and prompts.issuperset(self.starts) and sorted(set(self.starts)) == list(self.starts)
        ):
            raise ValueError(f"starts {self.starts!r:.80} are not 0 and later starts of prompts, in order")
        ids = np.asarray(self.ids)
        if len(ids) and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= 1 << 31):
            raise ValueError("a token id is not a whole number of 31 bits")
        object.__setattr__(self, "ids", _frozen(ids.astype(np.int32, copy=False)))
        object.__setattr__(self, "logprobs", logprob_column(self.logprobs))

    def __eq__(self, other: object) -> bool:
        """Equal in every field but the times; a log-prob that is not there equals one that is not there."""
        if not isinstance(other, Trajectory):
            return NotImplemented
        plain = (f.name for f in fields(self) if f.name not in ("ids", "logprobs", "times"))
        return (
            all(getattr(self, name) == getattr(other, name) for name in plain)
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.logprobs, other.logprobs, equal_nan=True)
        )

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def is_truncated(self) -> bool:
        return self.finish_reason in TRUNCATED

    @property
    def prompt_length(self) -> int:
        return self.segments[0].end

    @property
    def response_length(self) -> int:
        """Tokens behind the prompt of each sequence."""
        return len(self.ids) - sum(s.end - s.start for s in self.segments if s.start in self.starts)

    @property
    def sequences(self) -> tuple[slice, ...]:
        """The tokens of each sequence."""
        return tuple(slice(a, b) for a, b in itertools.pairwise((*self.starts, len(self.ids))))

    @property
    def num_policy_tokens(self) -> int:
        """The tokens that it sampled itself: of a branch, those behind its fork."""
        own = 0 if self.fork is None else self.fork.start
        return sum(s.end - s.start for s in self.segments if s.origin is Origin.policy and s.start >= own)

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        """The turns that it sampled itself: of a branch, those behind its fork."""
        return self.turns if self.fork is None else self.turns[self.fork.turns :]

    @property
    def results(self) -> tuple[ToolResult, ...]:
        return tuple(result for turn in self.turns for result in turn.results)

    def loss_mask(self) -> Mask:
        """True on tokens the policy wrote, False on prompt, tool output and a parent's part; one entry per token."""
        mask = np.zeros(len(self.ids), bool)
        for segment in self.segments:
            if segment.origin is Origin.policy:
                mask[segment.start : segment.end] = True
        if self.fork is not None:
            mask[: self.fork.start] = False
        return mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sibling trajectories of one task, generated together: roots in order, each before its branches."""

    task: Task
    trajectories: tuple[Trajectory, ...]

    @property
    def scored(self) -> tuple[Trajectory, ...]:
        """The siblings that may enter the baseline: those with a reward."""
        return tuple(t for t in self.trajectories if isinstance(t.outcome, Scored))
