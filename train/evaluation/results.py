"""Compute the numbers of results.json, and the summary of a set, from records. No clock.

    attempts/NAME.jsonl ─group_by_question─> questions ─set_results─> results.json, the same bytes every time
                                                        ─summarize───> Evaluation, for logs and the terminal

Records are the only input, also right after they were written, so a resumed, rescored or verified evaluation
computes the same numbers. avg@k is the mean over tasks of the share of correct attempts, pass@k the share of
tasks with a correct attempt among k. Intervals take tasks as the sample (statistics/). Failed attempts are
excluded from both and reported.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from rocstar.engine.types import Attempt, Failed, FinishReason, Scored, Task, Trajectory
from rocstar.train.evaluation.benchmarks.benchmark import Asking
from rocstar.train.evaluation.sets import EvaluationSet
from rocstar.train.evaluation.statistics.intervals import exact_mean
from rocstar.train.evaluation.statistics.scores import CountedScores, compute_scores, powers_up_to
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.tasks.verify import extract_answer

VERSION = 1
MAX_ANSWER_CHARACTERS = 200
"""The length limit of an answer in results.json; records have it in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """The numbers of one attempt. `is_correct` and `reward` are None if it Failed."""

    is_correct: bool | None
    reward: float | None
    failure: str | None
    tokens: int
    """The length of the response: all turns with tool results."""
    turns: int
    calls: int
    errors: int
    is_truncated: bool
    answer: str | None
    """The boxed answer, or None if the prompt asks for none."""
    measures: Mapping[str, float] = field(default_factory=dict)
    method: str = ""
    """How the judge decided."""


@dataclass(slots=True, kw_only=True)
class Question:
    """A task with its attempts in the order of the siblings."""

    task: Task
    rows: list[AttemptRow] = field(default_factory=list)

    @property
    def category(self) -> str | None:
        category = self.task.meta.get("category")
        return category if isinstance(category, str) else None

    @property
    def scored(self) -> list[AttemptRow]:
        return [row for row in self.rows if row.is_correct is not None]


def to_attempt(trajectory: Trajectory) -> Attempt:
    """Return the judge's view of a trajectory."""
    is_truncated = trajectory.finish_reason is not FinishReason.answered
    return Attempt(task=trajectory.task, turns=trajectory.turns, is_truncated=is_truncated, given=trajectory.given)


def group_by_question(trajectories: Iterable[Trajectory], chosen: EvaluationSet) -> dict[str, Question]:
    """Return questions by task id, in the order of their first trajectory."""
    found: dict[str, Question] = {}
    for t in trajectories:
        outcome = t.outcome
        scored = outcome if isinstance(outcome, Scored) else None
        answer = extract_answer(t).answer if chosen.asking is Asking.agent else None
        row = AttemptRow(
            is_correct=scored.is_correct if scored else None,
            reward=scored.reward if scored else None,
            failure=outcome.kind if isinstance(outcome, Failed) else None,
            tokens=t.response_length,
            turns=len(t.turns),
            calls=len(t.results),
            errors=sum(result.is_error for result in t.results),
            is_truncated=t.is_truncated,
            answer=None if answer is None else answer[:MAX_ANSWER_CHARACTERS],
            measures=dict(chosen.measures(to_attempt(t))) if scored else {},
            method=scored.method if scored else "",
        )
        found.setdefault(t.task.id, Question(task=t.task)).rows.append(row)
    return found


def summarize(questions: Mapping[str, Question], numbers: Mapping[str, Any]) -> Evaluation:
    """Return the summary of a set with a scored attempt. `numbers`: its `set_results`."""
    scored = {name: question.scored for name, question in questions.items() if question.scored}
    low, high = numbers["interval"]
    return Evaluation(
        k=numbers["k"],
        avg=numbers["avg"],
        pass_at_k=numbers["pass"],
        n_short=numbers["n_short"],
        ci_low=low,
        ci_high=high,
        num_tasks=len(scored),
        failed=numbers["failed"],
        failures=numbers["failures"],
        tool_error_share=numbers["tool_error_share"],
        is_truncated=numbers["truncated"] / sum(map(len, scored.values())),
        by_source=numbers["by_source"],
        rewards={name: [row.reward for row in of_task if row.reward is not None] for name, of_task in scored.items()},
        correct={name: [row.is_correct is True for row in of_task] for name, of_task in scored.items()},
    )


def set_results(
    questions: Mapping[str, Question], chosen: EvaluationSet, contaminated: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return all numbers of a set as JSON. `contaminated`: the result of `Learned.found`, or None if unknown.

    Scores over questions are computed in `_scores` only.
    """
    rows = [row for question in questions.values() for row in question.rows]
    scored = [row for row in rows if row.is_correct is not None]
    num_calls = sum(row.calls for row in scored)
    return {
        "k": chosen.samples,
        "num_questions": len(questions),
        **_scores(questions, k=chosen.samples),
        "failed": len(rows) - len(scored),
        "failures": dict(sorted(Counter(row.failure for row in rows if row.failure).items())),
        "n_short": sum(len(question.scored) < chosen.samples for question in questions.values()),
        "truncated": sum(row.is_truncated for row in scored),
        # Attempts that ended by themselves without the boxed answer that the prompt asks for.
        "unextracted": sum(
            chosen.asking is Asking.agent and row.answer is None and not row.is_truncated for row in scored
        ),
        "tokens_mean": exact_mean([row.tokens for row in scored]),
        "turns_mean": exact_mean([row.turns for row in scored]),
        "calls_mean": exact_mean([row.calls for row in scored]),
        "tool_error_share": sum(row.errors for row in scored) / num_calls if num_calls else 0.0,
        "by_source": _by(questions, lambda q: q.task.source),
        "measures": _measures(questions),
        "categories": (categories := _by(questions, lambda q: q.category)),
        "overall": dict(chosen.benchmark.overall(categories | _measures(questions)))
        if chosen.benchmark and chosen.benchmark.overall and categories
        else {},
        "pooled": _pooled(questions, chosen),
        "contamination": _clean(questions, contaminated, k=chosen.samples),
        "hidden": chosen.is_hidden,
        "questions": {name: _question(question, is_hidden=chosen.is_hidden) for name, question in questions.items()},
    }


def _scores(questions: Mapping[str, Question], *, k: int) -> dict[str, Any]:
    """Compute all scores with intervals, under both denominators. Questions have equal weight."""
    votes = [[(row.is_correct, row.answer) for row in question.rows] for question in questions.values()]
    left_out = compute_scores(votes, powers_up_to(k), failed_as_wrong=False)
    rewards = [
        fmean(row.reward for row in question.scored if row.reward is not None)
        for question in questions.values()
        if question.scored
    ]
    return {
        "avg": left_out.avg,
        "interval": left_out.interval,
        "pass": left_out.pass_at.get(k),
        "failed_left_out": _to_denominator(left_out),
        "failed_as_wrong": _to_denominator(compute_scores(votes, powers_up_to(k), failed_as_wrong=True)),
        "reward_mean": exact_mean(rewards),
    }


def _to_denominator(found: CountedScores) -> dict[str, Any]:
    """Return scores as JSON, with k as text."""
    fields = asdict(found)
    for name in ("pass_at", "pass_power", "maj_at", "n_short"):
        fields[name] = {str(k): value for k, value in fields[name].items()}
    return fields


def _clean(
    questions: Mapping[str, Question], contaminated: Mapping[str, Any] | None, *, k: int
) -> dict[str, Any] | None:
    """Return the overlap, and the scores of the questions without overlap."""
    if contaminated is None:
        return None
    dirty = set(contaminated["questions"])
    clean = {name: question for name, question in questions.items() if name not in dirty}
    scores = _scores(clean, k=k)
    return {
        **contaminated,
        "questions": sorted(dirty & questions.keys()),
        "num_contaminated": len(questions) - len(clean),
        "avg_clean": scores["avg"],
        "interval_clean": scores["interval"],
    }


def _measures(questions: Mapping[str, Question]) -> dict[str, float]:
    """Return the mean over questions of each column's mean over attempts."""
    columns: dict[str, list[float]] = {}
    for question in questions.values():
        mine: dict[str, list[float]] = {}
        for row in question.scored:
            for name, value in row.measures.items():
                mine.setdefault(name, []).append(value)
        for name, values in mine.items():
            columns.setdefault(name, []).append(fmean(values))
    return {name: fmean(values) for name, values in sorted(columns.items())}


def _pooled(questions: Mapping[str, Question], chosen: EvaluationSet) -> dict[str, float]:
    """Return scores of a built-in set that are not means over its attempts."""
    if chosen.benchmark is None or chosen.benchmark.pooled is None:
        return {}
    scored = [
        (question.task, Scored(reward=row.reward, method=row.method, is_correct=bool(row.is_correct)), row.measures)
        for question in questions.values()
        for row in question.scored
        if row.reward is not None
    ]
    return dict(chosen.benchmark.pooled(scored)) if scored else {}


def _by(questions: Mapping[str, Question], key: Any) -> dict[str, float]:
    """Return the mean score of the questions of each kind."""
    kinds: dict[str, list[float]] = {}
    for question in questions.values():
        if question.scored and (kind := key(question)) is not None:
            kinds.setdefault(kind, []).append(fmean(float(bool(r.is_correct)) for r in question.scored))
    return {kind: fmean(values) for kind, values in sorted(kinds.items())}


def _question(question: Question, *, is_hidden: bool) -> dict[str, Any]:
    rows = question.rows
    fields: dict[str, Any] = {
        "source": question.task.source,
        "attempts": [row.is_correct for row in rows],
        "rewards": [row.reward for row in rows],
        "tokens": [row.tokens for row in rows],
        "turns": [row.turns for row in rows],
        "calls": [row.calls for row in rows],
        "errors": [row.errors for row in rows],
        "truncated": [row.is_truncated for row in rows],
        "answers": [_withheld(row.answer) if is_hidden else row.answer for row in rows],
        "failures": [row.failure for row in rows],
    }
    if question.category is not None:
        fields["category"] = question.category
    if any(row.measures for row in rows):
        fields["measures"] = [dict(sorted(row.measures.items())) for row in rows]
    return fields


def _withheld(answer: str | None) -> str | None:
    """Return an answer to a hidden question: a letter as it is, a longer text, which may repeat the
    question, as a digest. Equal answers stay equal."""
    if answer is None or len(answer) <= 1:
        return answer
    return f"sha256:{hashlib.sha256(answer.encode(errors='surrogatepass')).hexdigest()[:12]}"


def results_text(sets: Mapping[str, Any], *, seed: int, step: int) -> str:
    """Return the text of results.json. `seed` is the recipe's."""
    return _lines({"v": VERSION, "seed": seed, "step": step, "sets": sets}, depth=4) + "\n"


def _lines(value: Any, *, depth: int, indent: str = "") -> str:
    """Return JSON with a line per member down to `depth`, so that each question has one line."""
    if not isinstance(value, dict) or not value or not depth:
        return json.dumps(value)
    inner = indent + " "
    members = (
        f"{inner}{json.dumps(key)}: {_lines(item, depth=depth - 1, indent=inner)}" for key, item in value.items()
    )
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The summary of k attempts per task."""

    k: int
    avg: float
    pass_at_k: float | None
    """The mean over tasks with k scored attempts, or None without such a task."""
    n_short: int
    """The number of tasks with fewer than k scored attempts."""
    ci_low: float
    ci_high: float
    num_tasks: int
    failed: int
    failures: dict[str, int]
    """The number of failed attempts by kind."""
    tool_error_share: float
    is_truncated: float
    by_source: dict[str, float]
    rewards: dict[str, list[float]]
    correct: dict[str, list[bool]]
    """The verdicts of each task's scored attempts, in the order of `rewards`."""

    @property
    def reward_mean(self) -> float | None:
        """The mean over tasks of their mean reward, or None if each reward is 1 for correct and 0 for
        wrong."""
        if self.rewards == {task: [float(c) for c in correct] for task, correct in self.correct.items()}:
            return None
        return fmean(fmean(rewards) for rewards in self.rewards.values())

    def metrics(self, name: str) -> dict[str, float]:
        """Return the metrics by their names of train/record/metrics.py."""
        optional = {f"eval/{name}/reward_mean": self.reward_mean, f"eval/{name}/pass@{self.k}": self.pass_at_k}
        fields = ("ci_low", "ci_high", "num_tasks", "n_short", "failed", "tool_error_share", "is_truncated")
        found = {f"eval/{name}/{field}": getattr(self, field) for field in fields}
        known = {key: value for key, value in optional.items() if value is not None}
        return known | {f"eval/{name}/avg@{self.k}": self.avg} | found


def unscored_error(trajectories: Sequence[Trajectory]) -> Exception:
    """Return the exception for a set without a scored attempt: the likely reason and its fix."""
    failures = [t.outcome for t in trajectories if isinstance(t.outcome, Failed)]
    kinds = Counter(failure.kind for failure in failures)
    if set(kinds) == {"too_long"}:
        lengths = [t.prompt_length for t in trajectories]
        return ConfigError(
            f"no attempt could be scored: prompts of {min(lengths)} to {max(lengths)} tokens are too long "
            f"({failures[0].detail}). Use a model with more positions, a shorter model.template or shorter "
            "tasks, or raise the engine's limit"
        )
    counts = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    last = f"{counts}; the last: {failures[-1].detail}" if failures else "no attempt was made"
    return TrainingStopped(f"no attempt could be scored; failures: {last}")
