"""verl-tool's tool server: /get_observation and /health, so that its agent loop can call this service.

    action (what the policy wrote) --blocks_of--> program --> sandbox --> observation, in its marks

Each action is a program by itself, as that server's `python_code` has it; nothing is kept of a trajectory, so
its end needs nothing either. Its client retries what is not 200: a failure of ours is that, and never an
observation.
"""

import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, cast

from aiohttp import web

from rocstar.sandbox.service.answers import Observation, Observations, ToolServerHealth
from rocstar.sandbox.service.borrowed import fault, raise_all, read_body
from rocstar.sandbox.service.calls import Admission, Outcome
from rocstar.sandbox.service.decode import check_text
from rocstar.sandbox.service.errors import Refused
from rocstar.sandbox.service.http import to_json
from rocstar.sandbox.service.incoming import Incoming, owner_of
from rocstar.sandbox.service.metrics import Metrics
from rocstar.sandbox.service.models import ActionsBody, models_of
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError, Status

Outcomes = AsyncGenerator[tuple[int, Outcome], None]

WALL_S = 10.0
MAX_OBSERVATION_CHARS = 100_000
"""As that server cuts it."""

LANGUAGES = {"python": "", "py": "", "bash": "bash", "sh": "bash"}
"""Marks of a block, and the flavour that it asks for: none, where the program's imports choose."""

_BLOCKS = tuple(
    re.compile(pattern, re.S)
    for pattern in (r"<(python|bash)>(.*?)</\1>", r"```\n?(python|py|bash|sh)\b(.*?)```")
)
_INPUT = re.compile(r"```input\n(.*?)\n```", re.S)


class VerlTool:
    """The handlers."""

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
        actions = await self._incoming.decoded(body, self._decode)
        del body
        requests = {
            index: made
            for index, action in enumerate(actions.actions)
            if not _at(actions.finish, index, False)
            if (made := self._request(action, _at(actions.extra_fields, index, {}), owner_of(request)))
        }
        results = await self._results(requests)
        answer = _answer(actions, results, (time.monotonic() - began_s) * 1e3)
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

    def _decode(self, body: bytes) -> ActionsBody:
        actions = read_body(body, models_of(self._rules).actions)
        number = len(actions.trajectory_ids)
        given = {
            "actions": actions.actions,
            "finish": actions.finish,
            "is_last_step": actions.is_last_step,
            "extra_fields": actions.extra_fields,
        }
        found = [
            fault(f"there are {len(values)} for {number} trajectory_ids; give one for each", name)
            for name, values in given.items()
            if values is not None and len(values) != number
        ]
        for index, action in enumerate(actions.actions):
            try:
                check_text(action, "actions")
            except Refused as refusal:
                found.append(fault(str(refusal), "actions", index))
        raise_all(found)
        return actions

    def _request(self, action: str, extra: dict[str, Any], owner: str) -> ExecRequest | None:
        """The program of an action; None where it has none that runs here."""
        language, code = program_of(action)
        flavour = LANGUAGES.get(language, "") or self._rules.choose(code)
        if not code or flavour not in self._rules.flavours:
            return None
        stdin = extra.get("stdin")
        if found := _INPUT.search(action):
            stdin = found[1].strip()
        defaults = self._rules.default_limits
        wall_s = min(WALL_S, self._rules.max_wall_s)
        limits = Limits(wall_s=wall_s, cpu_s=int(WALL_S) + 1, memory_bytes=defaults.memory_bytes)
        text = stdin if isinstance(stdin, str) else ""
        return ExecRequest(code=code, stdin=text, flavour=flavour, limits=limits, owner=owner)


def program_of(action: str) -> tuple[str, str]:
    """The language and the text of the blocks of an action, all those of the first one's language together;
    empty for an action without any."""
    for pattern in _BLOCKS:
        if blocks := pattern.findall(action):
            language = blocks[0][0]
            texts = (text.strip() for name, text in blocks if LANGUAGES[name] == LANGUAGES[language])
            return language, "\n".join(texts)
    return "", ""


def marked(action: str, text: str) -> str:
    """An observation in the marks that the action itself uses."""
    if "```output" in action or "```python" in action:
        return f"\n```result\n{text}\n```\n" if action.count("```") % 2 == 0 else f"\n{text}\n```\n"
    if "</tool_call>" in action:
        return f"\n<tool_response>\n```result\n{text}\n```\n</tool_response>\n"
    if action.strip(" \n").endswith("<result>"):
        return f"\n{text}\n</result>\n"
    return f"\n<result>\n{text}\n</result>\n"


def text_of(result: ExecResult) -> str:
    """What the policy is shown: what was written, and that time was over."""
    late = f"Execution timed out after {WALL_S:g} seconds.\n" if result.status is Status.TIMEOUT else ""
    text = f"{result.stdout}\n{result.stderr}{late}".strip(" \n")
    if not text and result.status not in (Status.OK, Status.ERROR):
        text = f"the program ended by {result.status}"
    return text[:MAX_OBSERVATION_CHARS]


def _answer(actions: ActionsBody, results: dict[int, ExecResult], milliseconds: float) -> Observations:
    observations: list[str | Observation] = []
    dones, valids = [], []
    for index, action in enumerate(actions.actions):
        finished = _at(actions.finish, index, False)
        result = results.get(index)
        if result is not None:
            observations.append(marked(action, text_of(result)))
        else:
            observations.append("" if finished else Observation(invalid_reason="no program was found"))
        dones.append(finished)
        valids.append(finished or result is not None)
    return Observations(
        observations=observations, dones=dones, valids=valids, processing_time_ms=milliseconds
    )


def _at(values: Sequence[Any] | None, index: int, otherwise: Any) -> Any:
    return otherwise if values is None else values[index]
