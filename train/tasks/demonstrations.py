"""Cold-start conversations: a mediocre demonstrator that solves tasks with short Python programs.

    tasks ──> num_workers coroutines, each one demonstration each ──> sandbox

The demonstrator teaches the format and leaves everything else to reinforcement: it guesses, picks wrong
programs, slips on its first call, forgets the answer tag or gives it twice. Slips are independent of whether
the program is right, so nothing in the data says that careful programs are correct ones. Every tool output
is a real execution. The result depends on (tasks, count, seed) alone, not on the order of executions.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocstar.engine.progress.progress import Work, working
from rocstar.engine.types import Task
from rocstar.sandbox.types import (
    DEFAULT_LIMITS,
    ExecRequest,
    ExecResult,
    Limits,
    Sandbox,
    SandboxError,
    Status,
)
from rocstar.train.recipe.errors import ConfigError

_IMPORT = "import math\n"
_OPENINGS = ("", "", "I will compute it.")
_RETRIES = ("The code failed. I will fix it.", "I made a mistake. Let me retry.")
_MAX_CALLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How mediocre the demonstrator is: probabilities, each drawn independently."""

    guess: float = 0.06
    """answers with a random number and no call"""
    right: float = 0.40
    """picks a right program"""
    first_slip: float = 0.60
    """breaks its first call"""
    retry_slip: float = 0.12
    """breaks its second call; the third is never broken"""
    no_tag: float = 0.06
    """ends without an answer block"""
    double_answer: float = 0.08
    """gives the answer block twice"""


DEFAULT_NOISE = Noise()


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Short programs for one question: those that print its answer, and plausible ones that do not."""

    right: tuple[str, ...]
    wrong: tuple[str, ...]


# ---------------------------------------------------------------- families


def _numbers(question: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"[0-9]+", question)]


def _gcd(question: str) -> Programs:
    a, b = _numbers(question)
    return Programs(
        right=(f"{_IMPORT}print(math.gcd({a}, {b}))",),
        wrong=(f"print({a} % {b})", f"print(min({a}, {b}))", f"{_IMPORT}print(math.lcm({a}, {b}))"),
    )


def _lcm(question: str) -> Programs:
    a, b = _numbers(question)
    return Programs(
        right=(f"{_IMPORT}print(math.lcm({a}, {b}))",),
        wrong=(f"print(max({a}, {b}))", f"print({a} + {b})", f"{_IMPORT}print(math.gcd({a}, {b}))"),
    )


def _products(question: str) -> Programs:
    a, b = _numbers(question)
    return Programs(
        right=(f"print({a} * {b})", f"{_IMPORT}print(math.prod([{a}, {b}]))"),
        wrong=(f"print({a} + {b})", f"print({a} ** 2)"),
    )


def _chain_sum(question: str) -> Programs:
    """Wrong programs differ from the right ones in their first token and copy every number: a wrong sign or a
    missing term would teach that copying is optional.
    """
    expression = question.partition(":")[2].rpartition("=")[0].strip()
    numbers = ", ".join(str(n) for n in _numbers(expression))
    return Programs(
        right=(f"print({expression})", f"x = {expression}\nprint(x)"),
        wrong=(f"print(max({numbers}))", f"print(min({numbers}))"),
    )


def _count_primes(question: str) -> Programs:
    a, b = _numbers(question)
    divisors = "range(2, math.isqrt(n) + 1)"
    return Programs(
        right=(f"{_IMPORT}print(sum(all(n % d for d in {divisors}) for n in range({max(a, 2)}, {b} + 1)))",),
        wrong=(f"print(({b} - {a}) // 2)", f"print(len(range({a}, {b})))"),
    )


def _count_bits(question: str) -> Programs:
    a = _numbers(question)[-1]  # the first number is the 1 of "How many 1 bits"
    return Programs(
        right=(f"print(bin({a}).count('1'))", f"print(int.bit_count({a}))"),
        wrong=(f"print(len(bin({a})))", f"print(bin({a}).count('0'))"),
    )


FAMILIES: Mapping[str, Callable[[str], Programs]] = {
    "gcd": _gcd,
    "lcm": _lcm,
    "products": _products,
    "chain_sum": _chain_sum,
    "count_primes": _count_primes,
    "count_bits": _count_bits,
}


def programs_for(task: Task) -> Programs:
    """The programs of a task's family, its numbers filled in. Raises ConfigError for a family without any."""
    family = str(task.meta.get("family", task.source))
    if family not in FAMILIES:
        raise ConfigError(
            f"no demonstrator for task family {family!r}; use any of {', '.join(FAMILIES)} in "
            "sft.demonstration_tasks, or give a chat JSONL file as sft.data"
        )
    try:
        return FAMILIES[family](task.question)
    except (ValueError, IndexError):
        raise ConfigError(
            f"the demonstrator of {family!r} cannot read the question {task.question!r}; it solves questions "
            "of two numbers, with the family's default options for their form"
        ) from None


# ---------------------------------------------------------------- slips


def spoil(code: str, rng: random.Random) -> str:
    """A typical slip: a forgotten import, an undefined name, a wrong case, an unbalanced bracket."""
    slips = [_undefined_name, _wrong_case, _unbalanced]
    if code.startswith(_IMPORT):
        slips += [_forgotten_import] * 3
    return rng.choice(slips)(code)


def _forgotten_import(code: str) -> str:
    return code.removeprefix(_IMPORT)


def _undefined_name(code: str) -> str:
    return code.rpartition("print(")[0] + "print(result)"


def _wrong_case(code: str) -> str:
    head, call, tail = code.rpartition("print(")
    return head + call.capitalize() + tail


def _unbalanced(code: str) -> str:
    return code[:-1]


# ---------------------------------------------------------------- conversations


async def make_demonstrations(
    tasks: Sequence[Task],
    count: int,
    *,
    seed: int,
    sandbox: Sandbox,
    tool_name: str,
    render_result: Callable[[ExecResult], str],
    limits: Limits = DEFAULT_LIMITS,
    flavour: str = "stdlib",
    tools: Sequence[Mapping[str, Any]] | None = None,
    noise: Noise = DEFAULT_NOISE,
    programs: Callable[[Task], Programs] = programs_for,
    num_workers: int = 32,
    call_deadline_s: float = 60.0,
    speaks: bool = True,
) -> list[dict[str, Any]]:
    """`count` chat rows {"messages": [...], "tools"?: [...]}. Tasks are used in turn, then from the first.

    `programs` says what a task's right and wrong programs are: of the families above, if nothing else is
    given. `speaks`: a call may have text in front, which a call form of the whole turn excludes. Tool calls
    are in OpenAI form, with arguments as objects. Raises ConfigError for a family without a demonstrator,
    SandboxError when the sandbox itself fails.
    """
    if not tasks:
        raise ConfigError("there are no tasks to demonstrate; widen sft.demonstration_tasks")
    for task in tasks:
        programs(task)
    demonstrator = _Demonstrator(
        sandbox=sandbox,
        tool_name=tool_name,
        render_result=render_result,
        limits=limits,
        flavour=flavour,
        noise=noise,
        programs=programs,
        call_deadline_s=call_deadline_s,
        speaks=speaks,
    )
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    indices = iter(range(count))

    async def work(made: Work) -> None:
        for index in indices:
            rng = random.Random(f"{seed}/{index}")
            rows[index]["messages"] = await demonstrator.solve(tasks[index % len(tasks)], rng)
            if tools is not None:
                rows[index]["tools"] = list(tools)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demonstrator:
    sandbox: Sandbox
    tool_name: str
    render_result: Callable[[ExecResult], str]
    limits: Limits
    flavour: str
    noise: Noise
    programs: Callable[[Task], Programs]
    call_deadline_s: float
    speaks: bool

    async def solve(self, task: Task, rng: random.Random) -> list[dict[str, Any]]:
        """The messages of one conversation, the task's first."""
        messages: list[dict[str, Any]] = [dict(message) for message in task.messages]
        if rng.random() < self.noise.guess:
            guess = str(rng.randrange(10 ** rng.choice([1, 2, 3, 4])))
            return [*messages, _assistant(_answer(guess))]
        programs = self.programs(task)
        code = rng.choice(programs.right if rng.random() < self.noise.right else programs.wrong)
        opening, output = rng.choice(_OPENINGS), ""
        for attempt in range(_MAX_CALLS):
            slips = (self.noise.first_slip, self.noise.retry_slip, 0.0)
            written = spoil(code, rng) if rng.random() < slips[attempt] else code
            result = await self._execute(written)
            output = self.render_result(result)
            messages += [self._call(opening, written, attempt), self._result(output, attempt)]
            if result.status is Status.OK:
                break
            opening = rng.choice(_RETRIES)
        return [*messages, _assistant(self._closing(output.strip(), rng))]

    async def _execute(self, code: str) -> ExecResult:
        request = ExecRequest(code=code, limits=self.limits, flavour=self.flavour, seed=0)
        deadline = asyncio.get_running_loop().time() + self.call_deadline_s
        return await self.sandbox.run(request, deadline=deadline)

    def _call(self, content: str, code: str, attempt: int) -> dict[str, Any]:
        function = {"name": self.tool_name, "arguments": {"code": code}}
        call = {"id": f"call_{attempt}", "type": "function", "function": function}
        return {"role": "assistant", "content": content if self.speaks else "", "tool_calls": [call]}

    def _result(self, output: str, attempt: int) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": f"call_{attempt}", "name": self.tool_name, "content": output}

    def _closing(self, value: str, rng: random.Random) -> str:
        draw = rng.random()
        if draw < self.noise.no_tag:
            return f"The result is {value}."
        if draw < self.noise.no_tag + self.noise.double_answer:
            return f"{_answer(value)}\n{_answer(value)}"
        return _answer(value)


def _assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def _answer(value: str) -> str:
    return f"<answer>\\boxed{{{value}}}</answer>"
