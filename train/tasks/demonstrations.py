"""Cold-start conversations: a mediocre demonstrator that solves tasks with short Python programs.

    tasks ──> num_workers coroutines, each one demonstration each ──> sandbox

The demonstrator teaches the format and leaves everything else to reinforcement: it guesses, picks wrong
programs, slips on its first call, forgets the answer tag or gives it twice. Slips are independent of whether
the program is right, so nothing in the data says that careful programs are correct ones. Every tool output
is a real execution. The result depends on (tasks, count, seed) alone, not on the order of executions.
"""

import asyncio
import random
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstar.engine.progress.progress import Work, working
from rocstar.engine.tools.jupyter import JupyterTool
from rocstar.engine.tools.python import PythonTool
from rocstar.engine.tools.results import result_text
from rocstar.engine.types import Task
from rocstar.sandbox.types import ExecRequest, Limits, Sandbox, SandboxError, Status
from rocstar.train.recipe.config import Noise
from rocstar.train.recipe.errors import ConfigError

_IMPORT = "import math\n"
_OPENINGS = ("", "", "I will compute it.")
_RETRIES = ("The code failed. I will fix it.", "I made a mistake. Let me retry.")
_MAX_CALLS = 3
_CALL_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Short programs for one question: some print its answer, plausible others do not."""

    right: tuple[str, ...]
    wrong: tuple[str, ...]


_ENTRIES = tomllib.loads(Path(__file__).with_name("demonstrations.toml").read_text(encoding="utf-8"))
FAMILIES: Mapping[str, Programs] = {
    name: Programs(right=tuple(entry["right"]), wrong=tuple(entry["wrong"])) for name, entry in _ENTRIES.items()
}
"""The programs of each family, as templates of `_values`."""


def _values(family: str, question: str) -> dict[str, Any]:
    """Return the values of a question in the templates. ValueError or IndexError for another form."""
    numbers = [int(digits) for digits in re.findall(r"[0-9]+", question)]
    if family == "count_bits":
        return {"a": numbers[-1]}  # the first number is the 1 of "How many 1 bits"
    if family == "chain_sum":
        expression = question.partition(":")[2].rpartition("=")[0].strip()
        terms = [str(int(digits)) for digits in re.findall(r"[0-9]+", expression)]
        return {"expression": expression, "numbers": ", ".join(terms)}
    a, b = numbers
    return {"a": a, "b": b, "first": max(a, 2)}


def programs_for(task: Task) -> Programs:
    """Return the programs of a task's family for its question. ConfigError for a family without any."""
    family = str(task.meta.get("family", task.source))
    if family not in FAMILIES:
        raise ConfigError(
            f"no demonstrator for task family {family!r}; use any of {', '.join(FAMILIES)} in "
            "sft.demonstration_tasks, or give a chat JSONL file as sft.data"
        )
    templates = FAMILIES[family]
    try:
        values = _values(family, task.question)
        return Programs(
            right=tuple(template.format(**values) for template in templates.right),
            wrong=tuple(template.format(**values) for template in templates.wrong),
        )
    except (ValueError, IndexError):
        raise ConfigError(
            f"the demonstrator of {family!r} cannot read the question {task.question!r}; it solves questions "
            "of two numbers, with the family's default options for their form"
        ) from None


def spoil(code: str, rng: random.Random) -> str:
    """Return code with a typical slip: an undefined name, a wrong case, an unbalanced bracket, or a forgotten
    import."""
    head, call, tail = code.rpartition("print(")
    slips = [f"{head}print(result)", head + call.capitalize() + tail, code[:-1]]
    if code.startswith(_IMPORT):
        slips += [code.removeprefix(_IMPORT)] * 3
    return rng.choice(slips)


async def make_demonstrations(
    tasks: Sequence[Task],
    count: int,
    *,
    seed: int,
    sandbox: Sandbox,
    tool: PythonTool | JupyterTool,
    noise: Noise,
    programs: Callable[[Task], Programs] = programs_for,
    num_workers: int = 32,
    speaks: bool = True,
) -> list[dict[str, Any]]:
    """Return `count` chat rows {"messages": [...]}. Tasks are used in turn, cyclically.

    `programs` returns a task's right and wrong programs; they run with the settings of `tool`. `speaks`: a
    call may have text before it, which a call form of the whole turn excludes. Tool calls are in OpenAI form,
    with arguments as objects. Raises ConfigError for a family without a demonstrator, SandboxError if the
    sandbox fails.
    """
    if not tasks:
        raise ConfigError("there are no tasks to demonstrate; widen sft.demonstration_tasks")
    for task in tasks:
        programs(task)
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    indices = iter(range(count))

    async def work(made: Work) -> None:
        for index in indices:
            rng = random.Random(f"{seed}/{index}")
            task = tasks[index % len(tasks)]
            rows[index]["messages"] = await _demonstrate(
                task, programs(task), rng, sandbox, tool, noise, speaks=speaks
            )
            made.done += 1

    try:
        with working("demonstrations", unit="conversations", total=count) as made:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(num_workers, count)):
                    group.create_task(work(made))
    except ExceptionGroup as failures:
        ours, others = failures.split(SandboxError)
        if ours is None or others is not None:
            raise
        raise ours.exceptions[0] from None
    return rows


async def _demonstrate(
    task: Task,
    programs: Programs,
    rng: random.Random,
    sandbox: Sandbox,
    tool: PythonTool | JupyterTool,
    noise: Noise,
    *,
    speaks: bool,
) -> list[dict[str, Any]]:
    """Return the messages of one conversation, the task's first."""
    messages: list[dict[str, Any]] = [dict(message) for message in task.messages]
    if rng.random() < noise.guess:
        guess = str(rng.randrange(10 ** rng.choice([1, 2, 3, 4])))
        return [*messages, {"role": "assistant", "content": _answer(guess)}]
    code = rng.choice(programs.right if rng.random() < noise.right else programs.wrong)
    opening, output = rng.choice(_OPENINGS), ""
    limits = Limits(wall_s=tool.limits.wall_s, memory_bytes=tool.limits.memory_bytes)
    for attempt in range(_MAX_CALLS):
        slips = (noise.first_slip, noise.retry_slip, 0.0)
        written = spoil(code, rng) if rng.random() < slips[attempt] else code
        request = ExecRequest(code=written, limits=limits, flavour=tool.flavour, seed=0)
        deadline = asyncio.get_running_loop().time() + _CALL_DEADLINE_S
        result = await sandbox.run(request, deadline=deadline)
        output = result_text(result, tool.style)
        id_ = f"call_{attempt}"
        function = {"name": tool.name, "arguments": {"code": written}}
        call = {"id": id_, "type": "function", "function": function}
        spoken = opening if speaks else ""
        messages += [
            {"role": "assistant", "content": spoken, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id_, "name": tool.name, "content": output},
        ]
        if result.status is Status.OK:
            break
        opening = rng.choice(_RETRIES)
    value, draw = output.strip(), rng.random()
    closing = _answer(value)
    if draw < noise.no_tag:
        closing = f"The result is {value}."
    elif draw < noise.no_tag + noise.double_answer:
        closing = f"{closing}\n{closing}"
    return [*messages, {"role": "assistant", "content": closing}]


def _answer(value: str) -> str:
    return f"<answer>\\boxed{{{value}}}</answer>"
