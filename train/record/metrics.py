"""The only list of metric names, and the file they are written to.

A name that is not in `METRICS` cannot be logged (`check_names`), so a dashboard never has to guess what a
name means or whether two spellings are one. `{...}` in a name stands for a word without a slash: an
evaluation set, a status, a number.

`reward/mean` and all of `tool/*`, `seq_len/*`, `num_turns/*`, `is_truncated/*` and `finish/*` are taken over
every generated trajectory of the step, before RoC drops any (rewards: over those with one).
"""

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TextIO

from rocstar.engine.record.files import whole_file
from rocstar.train.recipe.errors import ConfigError

Phase = Literal["sft", "rl", "eval"]
Row = dict[str, Any]
"""One line of metrics.jsonl: `step`, `stage`, `phase`, `time_s`, then metrics (a float, or None for NaN)."""

ROW_KEYS = ("step", "stage", "phase", "time_s")


class UnknownMetricError(ValueError):
    """A metric that `METRICS` does not list: add it there, with its unit and its meaning."""


class MetricsFileError(ConfigError):
    """metrics.jsonl holds a line, not the last, that is no row: the file was edited or is another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Unit and meaning of a metric name."""

    name: str
    unit: str
    meaning: str


def _listed(unit_and_meaning_by_name: Mapping[str, tuple[str, str]]) -> tuple[Metric, ...]:
    return tuple(Metric(name=n, unit=u, meaning=m) for n, (u, m) in unit_and_meaning_by_name.items())


METRICS = _listed({
    "reward/mean": ("reward", "mean reward of the generated trajectories"),
    "reward/correct_share": ("share", "generated trajectories judged correct"),
    "reward/timeouts": ("trajectories", "whose judge did not finish; they earn 0, or failed"),
    "reward/mean_kept": ("reward", "mean reward of the trajectories that the learner saw"),
    "eval/{set}/avg@{k}": ("reward", "attempts judged correct: mean over tasks of k attempts each"),
    "eval/{set}/pass@{k}": ("share", "tasks with a correct attempt among k, of those with k scored attempts"),
    "eval/{set}/ci_low": ("reward", "lower end of the 95% interval of avg@k"),
    "eval/{set}/ci_high": ("reward", "upper end of the 95% interval of avg@k"),
    "eval/{set}/reward_mean": ("reward", "mean reward of the attempts; where rewards are not 1 and 0"),
    "eval/{set}/num_tasks": ("tasks", "tasks in this evaluation set"),
    "eval/{set}/n_short": ("tasks", "tasks with fewer than k scored attempts: they are not in pass@k"),
    "eval/{set}/failed": ("trajectories", "attempts lost to a failure of ours; they count neither way"),
    "eval/{set}/tool_error_share": ("share", "tool calls of the attempts whose result is an error"),
    "eval/{set}/is_truncated": ("share", "attempts cut by a limit"),
    "tool/error_share": ("share", "tool calls whose result is an error"),
    "tool/error_share_in_correct": ("share", "tool calls of correct trajectories whose result is an error"),
    "tool/calls_mean": ("calls", "tool calls per trajectory, also undecodable ones"),
    "tool/executed_share": ("share", "trajectories with a well-formed call that a tool answered"),
    "tool/status/{status}": ("calls", "tool calls that ended with this status"),
    "tool/calls/{tool}": ("calls", "calls of this tool, with arguments it does not take too"),
    "tool/errors/{tool}": ("calls", "of these, those whose result is an error"),
    "tool/session_restarts": ("calls", "calls that met a fresh interpreter, for an earlier one ended theirs"),
    "tool/session_replays": ("calls", "calls whose lost interpreter was built again from its earlier cells"),
    "seq_len/mean": ("tokens", "tokens per trajectory: prompt, policy and tool"),
    "seq_len/max": ("tokens", "tokens of the longest trajectory"),
    "is_truncated/mean": ("share", "trajectories cut by a limit before they answered"),
    "num_turns/mean": ("turns", "completions of the policy per trajectory"),
    "finish/{reason}": ("share", "trajectories that ended for this reason"),
    "penalty/error_mean": ("penalty", "p_err of the correct trajectories (paper, Eq. 4)"),
    "penalty/format_mean": ("penalty", "p_format of the correct trajectories (paper, Eq. 5)"),
    "text/looping": ("share", "of a sample, with a turn in which most 8-grams of tokens were there before"),
    "answers/alike": ("share", "tasks that mostly get one and the same answer, beyond those whose it is"),
    "ledger/generated": ("trajectories", "generated in this step: the sum of the other buckets"),
    "ledger/kept": ("trajectories", "kept by RoC: the learner saw them"),
    "ledger/dropped_positive": ("trajectories", "correct, not drawn by RoC"),
    "ledger/dropped_negative": ("trajectories", "wrong, not drawn by RoC"),
    "ledger/no_signal": ("trajectories", "of a group whose rewards are all equal"),
    "ledger/failed": ("trajectories", "lost to a failure of ours; they have no reward"),
    "ledger/timed_out": ("trajectories", "that outlived engine.trajectory_timeout_s; each has a bucket too"),
    "failed/{kind}": ("trajectories", "lost to this kind of failure"),
    "nodes/up": ("nodes", "nodes that may be granted groups now; listed where there are several"),
    "nodes/groups/{node}": ("groups", "groups or shares of one, rolled out by this node since the last step"),
    "nodes/regranted": ("groups", "groups granted again since the last step, for their node failed them"),
    "groups/used": ("groups", "groups that gave an advantage"),
    "groups/no_signal": ("groups", "groups whose rewards are all equal"),
    "groups/refilled": ("groups", "groups rolled out beyond the first round, for want of signal (rl.refill)"),
    "reject_equal_reward/solve_equal_total_ratio": ("share", "groups whose rewards are all equal"),
    "reject_equal_reward/solve_equal_zeros": ("groups", "of these, groups without a correct trajectory"),
    "reject_equal_reward/solve_equal_non_all_zeros": ("groups", "of these, groups with a correct trajectory"),
    "roc_error_ratio/global_err_ratio": ("penalty", "mean p_err of all scored trajectories"),
    "roc_answer_format/answer_per_rollout_mean": ("answers", "closed answer blocks per trajectory"),
    "roc_answer_format/zero_answer_count": ("trajectories", "trajectories without an answer block"),
    "roc_answer_format/gt_one_answer_count": ("trajectories", "trajectories with several answer blocks"),
    "difficulty/tasks_seen": ("tasks", "tasks that the difficulty filter tried before this stage"),
    "difficulty/tasks_dropped": ("tasks", "of these, dropped because every attempt was correct"),
    "difficulty/failed": ("trajectories", "attempts of the difficulty filter that stayed without a score"),
    "loss/policy": ("loss", "clipped token-level policy loss of the step"),
    "loss/sft": ("nats", "mean cross-entropy per assistant token"),
    "sft/boxed": ("share", "greedy answers to 32 RL tasks after the cold start whose box the judge can read"),
    "clip/low_fraction": ("share", "loss tokens clipped at 1 - clip_low"),
    "clip/high_fraction": ("share", "loss tokens clipped at 1 + clip_high"),
    "entropy/mean": ("nats", "mean entropy of the policy at the loss tokens"),
    "ratio/max": ("ratio", "largest current / old probability ratio of a loss token"),
    "mismatch_kl/mean": ("nats", "mean rollout minus learner log-prob at the batch start, per loss token"),
    "mismatch_kl/after_tool": ("nats", "the same over loss tokens behind tool output of their trajectory"),
    "mismatch_kl/elsewhere": ("nats", "the same over the other loss tokens"),
    "start_kl/mean": ("nats", "mean k3 estimate of KL(policy || policy at the start of RL), per loss token"),
    "mismatch_ratio/p99": ("ratio", "99% of loss tokens: their two probabilities lie at most so far apart"),
    "mismatch_ratio/p99_after_tool": ("ratio", "the same over loss tokens behind tool output"),
    "mismatch_ratio/p99_elsewhere": ("ratio", "the same over the other loss tokens"),
    "tis/capped_fraction": ("share", "loss tokens whose importance weight reached its cap"),
    "tis/masked_fraction": ("share", "loss tokens that icepop dropped"),
    "tis/masked_fraction_after_tool": ("share", "the same over loss tokens behind tool output"),
    "tis/masked_fraction_elsewhere": ("share", "the same over the other loss tokens"),
    "gate/bad_steps": ("steps", "steps in a row, with this one, whose mismatch is beyond the bounds"),
    "gate/paused": ("share", "1 if the gate let no update of this step through, else 0"),
    "optim/grad_norm": ("norm", "gradient norm before clipping"),
    "optim/lr": ("per step", "learning rate of the update"),
    "policy/version": ("version", "policy version after the update"),
    "policy/staleness_max": ("versions", "learner version minus the oldest version in the batch"),
    "tokens/generated": ("tokens", "tokens that the policy wrote in this step"),
    "tokens/loss": ("tokens", "tokens that carried loss in this step"),
    "batch/empty_updates": ("updates", "not made, for none of their tokens carries loss"),
    "batch/over_budget": ("trajectories", "longer than rl.tokens_per_microbatch: each alone in a microbatch"),
    "engine/replicas_up": ("replicas", "of a fleet, that serve at the end of the step"),
    "engine/replicas_lost": ("replicas", "taken out in this step: dead, hung, or without the new weights"),
    "engine/replicas_back": ("replicas", "started again and up in this step"),
    "engine/turns_continued": ("turns", "cut off on one replica and continued from there on another"),
    "engine/recomputed_tokens": ("tokens", "of context whose KV was lost with a replica"),
    "engine/publishes_failed": ("publishes", "new weights that a replica did not take"),
    "engine/kv_peak/{replica}": ("share", "of the replica's KV pool, in use at most, looked at each second"),
    "engine/rows_evicted": ("rows", "of embedded engines, evicted for lack of KV memory and computed again"),
    "engine/out_of_memory": ("times", "that memory ran out in an embedded engine; fewer rows ran afterwards"),
    "memory/freed_gradients": ("bytes", "of gradients that rank 0 gave back before servers started"),
    "memory/freed_moments": ("bytes", "of moments that rank 0 moved to CPU memory for that time"),
    "memory/freed_frozen": ("bytes", "of frozen weights that rank 0 moved to CPU memory for that time"),
    "memory/held": ("bytes", "that rank 0's GPU still held for the learner when the servers started"),
    "time/step": ("s", "wall time of the step: the sum of the phases below"),
    "time/generate": ("s", "the policy was decoding"),
    "time/kv_wait": ("s", "the policy was decoding while others waited for room in its KV cache"),
    "time/tool_wait": ("s", "nothing was decoding: every trajectory in flight waited for its tool"),
    "time/reward": ("s", "only answers were being judged"),
    "time/learn": ("s", "forward, backward and optimizer"),
    "time/publish": ("s", "new weights on their way to the policy"),
    "time/checkpoint": ("s", "copying a checkpoint out, and waiting for the last one to be written"),
    "time/eval": ("s", "evaluation"),
    "time/other": ("s", "the rest: scheduling, packing, logging"),
    "time/loop_lag_p99": ("s", "delay of rank 0's event loop, 99th percentile over time"),
    "time/loop_lag_max": ("s", "the longest delay of rank 0's event loop"),
    "alarm/{name}": ("share", "1 while this alarm is active, 0 when it is over; see docs/guide/doctor.md"),
    "metrics/nonfinite": ("metrics", "metrics of this row that were NaN or infinite; written as null"),
})  # fmt: skip

_BY_NAME = {metric.name: metric for metric in METRICS}
_PATTERNS = [
    (re.compile(re.sub(r"\\{\w+\\}", "[^/{}]+", re.escape(metric.name))), metric)
    for metric in METRICS
    if "{" in metric.name
]


@cache
def metric_of(name: str) -> Metric:
    """The entry of `METRICS` that lists `name`.

    Raises:
        UnknownMetricError: none does.
    """
    if name in _BY_NAME and "{" not in name:
        return _BY_NAME[name]
    for pattern, metric in _PATTERNS:
        if pattern.fullmatch(name):
            return metric
    raise UnknownMetricError(f"metric {name!r} is not listed; add it to METRICS in train/record/metrics.py")


_ZERO_IF_ABSENT = frozenset({
    "finish/{reason}", "tool/status/{status}", "tool/calls/{tool}", "tool/errors/{tool}", "failed/{kind}",
    "alarm/{name}",
})  # fmt: skip


def is_zero_if_absent(name: str) -> bool:
    """True if a step without this metric means 0: it counts an event that may not occur in a step."""
    return any(metric.name in _ZERO_IF_ABSENT and pattern.fullmatch(name) for pattern, metric in _PATTERNS)


def check_names(metrics: Iterable[str]) -> None:
    """Raise `UnknownMetricError` for a name that `METRICS` does not list."""
    for name in metrics:
        metric_of(name)


def read_metrics(path: Path) -> list[Row]:
    """Return the rows of a metrics.jsonl without a torn last line (a writer died, or is writing now).

    Raises:
        MetricsFileError: another line is no JSON object with the keys of a row.
        OSError: the file cannot be read.
    """
    return [row for row, _ in _parse(path, path.read_bytes())]


def _parse(path: Path, data: bytes) -> list[tuple[Row, int]]:
    """Return each row with the offset of its end."""
    rows: list[tuple[Row, int]] = []
    end = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        end += len(line)
        if not line.endswith(b"\n"):
            break
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not all(key in row for key in ROW_KEYS):
            raise MetricsFileError(f"{path}, line {number}: not a row of metrics: {line[:80]!r}")
        rows.append((row, end))
    return rows


def rows_behind(path: Path, num_bytes: int) -> list[tuple[Row, int]]:
    """Return the rows after the first `num_bytes` of a metrics.jsonl, each with the offset of its end."""
    return [(row, end) for row, end in _parse(path, path.read_bytes()) if end > num_bytes]


def num_succeeded(old: Sequence[Row], row: Row) -> int:
    """Return the number of `old` rows, in the order of a run, that precede `row` or are its predecessor.

    Evaluation, difficulty filter and the measure after the cold start share step and phase, not the stage.
    """
    place = _place(row)
    same = [k for k, o in enumerate(old) if _place(o) == place and o["stage"] == row["stage"]]
    return same[-1] + 1 if same else sum(_place(o) < place for o in old)


def _place(row: Row) -> tuple[bool, int, bool]:
    """Return the order of a row in a run: the cold start, then each step before the evaluation after it."""
    return row["phase"] != "sft", row["step"], row["phase"] == "eval"


class MetricsWriter:
    """Appends one JSON object per step to metrics.jsonl.

    Invariant: after every `write` the file is a sequence of whole lines, one per written row, in order;
    behind them those of an earlier life whose successors are not written yet.
    A line torn by a crash is cut off when the file is opened again, and `time_s` goes on from the last row.
    """

    def __init__(
        self, path: Path, *, keep_bytes: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open `path` for appending, mending its last line.

        Rows behind the first `keep_bytes` will be written again: each goes when its successor is written, in
        one rename, so that nothing is lost in between.

        Raises:
            MetricsFileError: the file holds something else.
            OSError: it cannot be opened.
        """
        self.path = path
        self._clock = clock
        data = path.read_bytes() if path.exists() else b""
        rows = _parse(path, data)
        whole = rows[-1][1] if rows else 0
        if whole < len(data):
            os.truncate(path, whole)
        own = whole if keep_bytes is None else min(keep_bytes, whole)
        self._own = data[:own]
        begins = [0, *(end for _, end in rows)]
        spans = zip(rows, begins, strict=False)
        self._old = [(row, data[begin:end]) for (row, end), begin in spans if end > own]
        self._file: TextIO = self.path.open("a", encoding="utf-8")
        self._started = self._clock()
        self._rows_s = max((float(row["time_s"]) for row, end in rows if end <= own), default=0.0)

    @property
    def num_bytes(self) -> int:
        """Size of this life's rows and of those it goes on from."""
        return len(self._own) if self._old else self.path.stat().st_size

    def write(self, metrics: Mapping[str, float], *, step: int, stage: str, phase: Phase) -> Row:
        """Append one row and flush it; return it as written. NaN and infinity become null and are counted.

        Raises:
            UnknownMetricError: a name is not listed; nothing is written.
            OSError: the line could not be written; reopening the file repairs it.
        """
        check_names(metrics)
        row: Row = {
            "step": step,
            "stage": stage,
            "phase": phase,
            "time_s": round(self._rows_s + self._clock() - self._started, 3),
        }
        row |= {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        num_nonfinite = sum(not math.isfinite(value) for value in metrics.values())
        if num_nonfinite:
            row["metrics/nonfinite"] = float(num_nonfinite)
        line = json.dumps(row, allow_nan=False) + "\n"
        if self._old:
            self._replace(row, line.encode())
        else:
            self._file.write(line)
            self._file.flush()
        return row

    def _replace(self, row: Row, line: bytes) -> None:
        """Put a row where its predecessor of an earlier life stood."""
        left = self._old[num_succeeded([old for old, _ in self._old], row) :]
        own = self._own + line
        with whole_file(self.path) as file:
            file.write(own + b"".join(old for _, old in left))
        self._own, self._old = own, left
        self._file.close()
        self._file = self.path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
