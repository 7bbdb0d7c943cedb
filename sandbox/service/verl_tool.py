"""verl-tool's tool server: /get_observation and /health, so that its agent loop can call this service.

    action (what the policy wrote) --blocks_of--> program --> sandbox --> observation, in its marks

Each action is a program by itself, as that server's `python_code` has it; nothing is kept of a trajectory, so
its end needs nothing either. Its client retries what is not 200: a failure of ours is that, and never an
observation.
"""

import re
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from aiohttp import web

from rocstar.sandbox.service.answers import InvalidAction, Observations, ToolServerHealth
from rocstar.sandbox.service.borrowed import fault, raise_all, read_body
from rocstar.sandbox.service.calls import Admission, Outcome
from rocstar.sandbox.service.decode import check_text
from rocstar.sandbox.service.errors import Refused
from rocstar.sandbox.service.http import to_json
from rocstar.sandbox.service.incoming import Incoming, owner_of
from rocstar.sandbox.service.metrics import Metrics
from rocstar.sandbox.service.mistakes import Mistake
from rocstar.sandbox.service.models import models_of
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError, Status

Outcomes = AsyncGenerator[tuple[int, Outcome], None]

WALL_S = 10.0
MAX_OBSERVATION_CHARS = 100_000
"""As that server cuts it."""

LANGUAGES = {"python": "", "py": "", "bash": "bash", "sh": "bash"}
"""Marks of a block, and the flavour that it asks for: none, where the program's imports choose."""

_OPENINGS = (
    (re.compile(r"<(python|bash)>"), "</{}>"),
    (re.compile(r"```\n?(python|py|bash|sh)\b"), "```"),
)
"""What begins a block of each kind, and what ends it, with the language in the braces."""

_INPUT = ("```input\n", "\n```")


@dataclass(frozen=True, slots=True)
class Step:
    """What is made of an action. request: None where it has no program that runs here. marks: what comes
    before and after the text of its observation."""

    request: ExecRequest | None
    marks: tuple[str, str]
    is_last: bool


class VerlTool:
    """The handlers. Invariant: the text of an action is looked at beside the loop, in time linear in it."""

    def __init__(self, admission: Admission, metrics: Metrics, rules: Rules, incoming: Incoming) -> None:
        self._admission = admission
        self._metrics = metrics
        self._rules = rules
        self._incoming = incoming
        self._began_s = time.monotonic()

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/get_observation", self.observe), web.get("/health", self.health)]

    async def health(self, request: web.Request) -> web.Response:
        tools = ["python_code", *(("bash",) if "bash" in self._rules.flavours else ()), "finish"]
        answer = ToolServerHealth(
            active_tasks=self._metrics.in_flight, tools=tools, uptime_seconds=time.monotonic() - self._began_s
        )
        return web.Response(body=to_json(answer), content_type="application/json")

    async def observe(self, request: web.Request) -> web.Response:
        began_s = time.monotonic()
        body = await self._incoming.read(request)
        owner = owner_of(request)
        steps = await self._incoming.decoded(owner, body, lambda body: self._decode(body, owner))
        del body
        results = await self._results({i: one.request for i, one in enumerate(steps) if one.request})
        answer = _answer(steps, results, (time.monotonic() - began_s) * 1e3)
        return web.Response(body=to_json(answer), content_type="application/json")

    async def _results(self, requests: dict[int, ExecRequest]) -> dict[int, ExecResult]:
        """By their keys. Raises SandboxError if one has none; the others are killed then."""
        results: dict[int, ExecResult] = {}
        places = list(requests)
        if not places:
            return results
        outcomes = cast(Outcomes, self._admission.run_batch(list(requests.values())))
        async with aclosing(outcomes):
            async for place, outcome in outcomes:
                if isinstance(outcome, SandboxError):
                    raise outcome
                results[places[place]] = outcome
        return results

    def _decode(self, body: bytes, owner: str) -> list[Step]:
        actions = read_body(body, models_of(self._rules).actions)
        number = len(actions.trajectory_ids)
        given = {
            "actions": actions.actions,
            "finish": actions.finish,
            "is_last_step": actions.is_last_step,
            "extra_fields": actions.extra_fields,
        }
        raise_all(
            [
                fault(f"there are {len(values)} for {number} trajectory_ids; give one for each", name)
                for name, values in given.items()
                if values is not None and len(values) != number
            ]
        )
        finish = actions.finish or [False] * number
        extras = actions.extra_fields or [{}] * number
        steps: list[Step] = []
        found: list[Mistake] = []
        for index, (action, is_last, extra) in enumerate(zip(actions.actions, finish, extras, strict=True)):
            try:
                steps.append(self._step(action, is_last, extra.get("stdin"), owner))
            except Refused as refusal:
                found.append(fault(str(refusal), refusal.field, index))
        raise_all(found)
        return steps

    def _step(self, action: str, is_last: bool, stdin: object, owner: str) -> Step:
        """Raises Refused for what is no text, or too much of it."""
        check_text(action, "actions")
        marks = marks_of(action)
        language, code = ("", "") if is_last else program_of(action)
        flavour = LANGUAGES.get(language, "") or self._rules.choose(code)
        if not code or flavour not in self._rules.flavours:
            return Step(None, marks, is_last)
        between = input_of(action)
        text = between if between is not None else stdin if isinstance(stdin, str) else ""
        check_text(text, "extra_fields")
        wall_s = min(WALL_S, self._rules.max_wall_s)
        memory_bytes = self._rules.default_limits.memory_bytes
        limits = Limits(wall_s=wall_s, cpu_s=int(WALL_S) + 1, memory_bytes=memory_bytes)
        request = ExecRequest(code=code, stdin=text, flavour=flavour, limits=limits, owner=owner)
        return Step(request, marks, is_last)


def program_of(action: str) -> tuple[str, str]:
    """The language and the text of the blocks of an action, all those of the first one's language together;
    empty for an action without any."""
    for opening, closing in _OPENINGS:
        if blocks := list(_blocks(action, opening, closing)):
            language = blocks[0][0]
            texts = (text.strip() for name, text in blocks if LANGUAGES[name] == LANGUAGES[language])
            return language, "\n".join(texts)
    return "", ""


def _blocks(action: str, opening: re.Pattern[str], closing: str) -> Iterator[tuple[str, str]]:
    """Language and text of each block that is closed. An end that is not found is not looked for again:
    thousands of blocks that are only begun would take that many times the whole text."""
    unclosed: set[str] = set()
    behind = 0
    for found in opening.finditer(action):
        end_mark = closing.format(found[1])
        if found.start() < behind or end_mark in unclosed:
            continue
        end = action.find(end_mark, found.end())
        if end < 0:
            unclosed.add(end_mark)
            continue
        yield found[1], action[found.end() : end]
        behind = end + len(end_mark)


def input_of(action: str) -> str | None:
    """The text of an action's first block of input; None without one."""
    _, begun, rest = action.partition(_INPUT[0])
    text, ended, _ = rest.partition(_INPUT[1])
    return text.strip() if begun and ended else None


def marks_of(action: str) -> tuple[str, str]:
    """The marks that an observation has by those that the action itself uses."""
    if "```output" in action or "```python" in action:
        return ("\n```result\n" if action.count("```") % 2 == 0 else "\n"), "\n```\n"
    if "</tool_call>" in action:
        return "\n<tool_response>\n```result\n", "\n```\n</tool_response>\n"
    if action.rstrip(" \n").endswith("<result>"):
        return "\n", "\n</result>\n"
    return "\n<result>\n", "\n</result>\n"


def text_of(result: ExecResult) -> str:
    """What the policy is shown: what was written, and that time was over."""
    late = f"Execution timed out after {WALL_S:g} seconds.\n" if result.status is Status.TIMEOUT else ""
    text = f"{result.stdout}\n{result.stderr}{late}".strip(" \n")
    if not text and result.status not in (Status.OK, Status.ERROR):
        text = f"the program ended by {result.status}"
    return text[:MAX_OBSERVATION_CHARS]


def _answer(steps: Sequence[Step], results: dict[int, ExecResult], milliseconds: float) -> Observations:
    observations: list[str | InvalidAction] = []
    for index, step in enumerate(steps):
        if index in results:
            observations.append(text_of(results[index]).join(step.marks))
        else:
            observations.append("" if step.is_last else InvalidAction(invalid_reason="no program was found"))
    return Observations(
        observations=observations,
        dones=[step.is_last for step in steps],
        valids=[step.is_last or index in results for index, step in enumerate(steps)],
        processing_time_ms=milliseconds,
    )
