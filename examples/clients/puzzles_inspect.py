"""The 20 puzzles, for inspect-ai: the agent answers, and its boxed answer counts.

    inspect eval puzzles_inspect.py --model openai-api/rocstar/rocstar-agent

With `-T named=true` a question goes by the name that `rocstar eval` gives its task (`id` in the file named by
`-T questions=FILE`): on the same seed both then draw the same noise.
"""

from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import pattern
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver

BOXED = r"<answer>\s*\\boxed\{(.*?)\}\s*</answer>"


@solver
def by_name() -> Solver:
    """Ask under the task's own name, which the noise depends on."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        return await generate(state, extra_body={"rocstar": {"task_id": str(state.sample_id)}})

    return solve


@task
def puzzles(questions: str = "questions.jsonl", named: bool = False) -> Task:
    """The puzzles of `questions`."""
    fields = FieldSpec(input="question", target="answer", id="id" if named else None)
    return Task(
        dataset=json_dataset(questions, fields), solver=by_name() if named else generate(), scorer=pattern(BOXED)
    )
