"""Find the tasks and texts of a recipe that are questions of its evaluation (`rocstar data check`'s rule).

sets by label ──EvalQuestions──> of(problems): for each problem the (label, task id) that it is a question of
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rocstar.engine.types import Task
from rocstar.train.data.overlap import EvalQuestion, OverlapCheck
from rocstar.train.record.learned_questions import Question

LEFT_OUT: Final = ("duplicate", "near")
"""The levels at which a task is not trained on."""


def problem_of(task: Task) -> str:
    """Return the text of a task: the turns before it and the question, without system messages; for a
    task of an environment the hash of its row."""
    if task.environment is not None:
        return task.id.partition("-")[0]
    turns = [m for m in task.context if m["role"] not in ("system", "developer")]
    said = [f"{m['content']} {m.get('tool_calls') or ''}" for m in turns]
    return "\n".join([*said, task.question])


class EvalQuestions:
    """The questions of a recipe's sets, in which problems are looked up."""

    def __init__(self, sets: Mapping[str, Sequence[Task]]) -> None:
        # Two sets may have the same tasks, and a problem names one question.
        self._names: dict[tuple[str, str], list[Question]] = {}
        for label, tasks in sets.items():
            for task in tasks:
                self._names.setdefault((problem_of(task), task.answer), []).append((label, task.id))
        self._asked = [EvalQuestion(file="", id="", text=text, answer=answer) for text, answer in self._names]

    def of(self, problems: Iterable[tuple[str, str]]) -> list[list[Question]]:
        """Return for each (problem, answer) the questions it equals; unknown answers are empty."""
        problems = list(problems)
        if not self._asked or not problems:
            return [[] for _ in problems]
        check, names = OverlapCheck(self._asked), list(self._names.values())
        found = [check.meet(text, answer) for text, answer in problems]
        for met in found:
            check.count(met)
        check.close()
        verdicts = map(check.judge, found)
        return [
            names[verdict.question] if verdict.question is not None and verdict.level in LEFT_OUT else []
            for verdict in verdicts
        ]

    def of_tasks(self, tasks: Sequence[Task]) -> list[list[Question]]:
        """Return for each task the questions it equals."""
        return self.of((problem_of(task), task.answer) for task in tasks)
