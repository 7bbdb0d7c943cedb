"""verl-tool's tool server: /get_observation and /health, so that its agent loop can call this service.

    action (what the policy wrote) --blocks_of--> program --> sandbox --> observation, in its marks

Each action is a program by itself, as that server's `python_code` has it; nothing is kept of a trajectory, so
its end needs nothing either. Its client retries what is not 200: a failure of ours is that, and never an
observation.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import cast

from aiohttp import web

from rocstar.sandbox.service.answers import InvalidAction, Observations, ToolServerHealth
from rocstar.sandbox.service.calls import Admission, Outcome
from rocstar.sandbox.service.decode_verl_tool import WALL_S, Step, Steps, decode_actions
from rocstar.sandbox.service.http import send, to_json
from rocstar.sandbox.service.idempotency import HttpAnswer
from rocstar.sandbox.service.incoming import Incoming
from rocstar.sandbox.service.metrics import Metrics
from rocstar.sandbox.service.outputs import HeldOutput
from rocstar.sandbox.service.request import HttpRequest
from rocstar.sandbox.service.routes import HttpRoute
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.service.turns import Turns
from rocstar.sandbox.service.written import LONG_CHARS, in_pieces
from rocstar.sandbox.types import ExecResult, SandboxError, Status

Outcomes = AsyncGenerator[tuple[int, Outcome], None]

MAX_OBSERVATION_CHARS = 100_000
"""As that server cuts it."""

FEW = 64
"""Actions whose observations are put together at once."""


class VerlTool:
    """The handlers. Invariant: the text of an action is looked at beside the loop, in time linear in it."""

    def __init__(self, admission: Admission, metrics: Metrics, rules: Rules, incoming: Incoming) -> None:
        self._admission = admission
        self._metrics = metrics
        self._rules = rules
        self._incoming = incoming
        self._began_s = time.monotonic()

    def routes(self) -> list[HttpRoute]:
        return [HttpRoute("POST", "/get_observation", self.observe), HttpRoute("GET", "/health", self.health)]

    async def health(self, request: HttpRequest) -> web.Response:
        tools = ["python_code", *(("bash",) if "bash" in self._rules.flavours else ()), "finish"]
        answer = ToolServerHealth(
            active_tasks=self._metrics.in_flight, tools=tools, uptime_seconds=time.monotonic() - self._began_s
        )
        return web.Response(body=to_json(answer), content_type="application/json")

    async def observe(self, request: HttpRequest) -> web.StreamResponse:
        began_s = time.monotonic()
        body = await self._incoming.read(request)
        owner = request.owner
        decode = partial(decode_actions, rules=self._rules, owner=owner)
        actions = await self._incoming.decoded(owner, body, decode)
        steps = actions.steps
        del body
        with HeldOutput(self._admission.held, owner) as held:
            texts = await self._texts(actions, held)
            milliseconds = (time.monotonic() - began_s) * 1e3
            if len(steps) <= FEW and sum(map(len, texts.values())) < LONG_CHARS:
                body = to_json(_answer(steps, texts, milliseconds))
            else:
                body = await asyncio.to_thread(lambda: in_pieces(_answer(steps, texts, milliseconds)))
            return await send(request, HttpAnswer(status=200, body=body))

    async def _texts(self, actions: Steps, held: HeldOutput) -> dict[int, str]:
        """What the policy is shown of each program, by its place. Raises SandboxError if one has no result;
        the others are killed then."""
        texts: dict[int, str] = {}
        if not actions.runnable:
            return texts
        turns = Turns()
        outcomes = cast(Outcomes, self._admission.run_batch(actions.sent()))
        async with aclosing(outcomes):
            async for place, outcome in outcomes:
                if isinstance(outcome, SandboxError):
                    raise outcome
                text = texts[actions.runnable[place]] = text_of(held.cut(outcome))
                held.take(len(text))
                await turns.pause()
        return texts


def text_of(result: ExecResult) -> str:
    """What the policy is shown: what was written, and that time was over."""
    late = f"Execution timed out after {WALL_S:g} seconds.\n" if result.status is Status.TIMEOUT else ""
    text = f"{result.stdout}\n{result.stderr}{late}".strip(" \n")
    if not text and result.status not in (Status.OK, Status.ERROR):
        text = f"the program ended by {result.status}"
    return text[:MAX_OBSERVATION_CHARS]


def _answer(steps: Sequence[Step], texts: dict[int, str], milliseconds: float) -> Observations:
    observations: list[str | InvalidAction] = []
    for index, step in enumerate(steps):
        if index in texts:
            observations.append(texts[index].join(step.marks))
        else:
            observations.append("" if step.is_last else InvalidAction(invalid_reason=step.invalid))
    return Observations(
        observations=observations,
        dones=[step.is_last for step in steps],
        valids=[step.is_last or index in texts for index, step in enumerate(steps)],
        processing_time_ms=milliseconds,
    )
