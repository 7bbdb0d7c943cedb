"""Metrics of a step's texts, from a sample of its trajectories. Pure; diagnosis reads them.

At most SAMPLE trajectories are read, evenly over the step's tasks, because a large step has gigabytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rocstar.engine.record.signs import is_looping, is_timed_out
from rocstar.engine.types import Scored, Trajectory
from rocstar.train.tasks.verify import extract_answer

SAMPLE: Final = 256
LEAST_TASKS: Final = 8


def text_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`text/looping`, `answers/alike` (with LEAST_TASKS tasks that were answered) and `reward/timeouts`."""
    found = {"reward/timeouts": float(sum(is_timed_out(t) for t in trajectories))}
    sample = trajectories[:: max(1, len(trajectories) // SAMPLE)]
    if sample:
        found["text/looping"] = sum(map(is_looping, sample)) / len(sample)
    alike = answers_alike(sample)
    return found if alike is None else found | {"answers/alike": alike}


def answers_alike(trajectories: Sequence[Trajectory]) -> float | None:
    """The largest share of tasks whose siblings answer one thing most often, less the share whose answer it
    is.

    None with fewer than LEAST_TASKS tasks that were answered.
    """
    answers: dict[str, Counter[str]] = {}
    truths: dict[str, str] = {}
    for trajectory in trajectories:
        if isinstance(trajectory.outcome, Scored) and trajectory.turns:
            answer = extract_answer(trajectory.turns).answer
            if answer is not None:
                answers.setdefault(trajectory.task.id, Counter())[answer] += 1
                truths[trajectory.task.id] = trajectory.task.answer.strip()
    if len(answers) < LEAST_TASKS:
        return None
    often = Counter(min(given, key=lambda one: (-given[one], one)) for given in answers.values())
    right = Counter(truths.values())
    return max(max(0, count - right[answer]) for answer, count in often.items()) / len(answers)
