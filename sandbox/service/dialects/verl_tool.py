"""The verl-tool dialect: /get_observation and /health, for the agent loop of verl-tool.

    action (text of the policy) --program_of--> program --> sandbox --> observation, with the action's marks

Each action is an independent program, as in that server's `python_code`; no state of a trajectory is stored.
Its client retries every status but 200: a failure of the service has another status, and is never an
observation. Parsing takes time linear in the text.
"""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import Meta, Struct

from rocstar.sandbox._native import MOST_SHELL_BYTES
from rocstar.sandbox.child.bash import BASH
from rocstar.sandbox.http.bodies import BodyReader, LoopYielder
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.packed_items import SelectedItems, matching_indices, pack_items
from rocstar.sandbox.http.responses import LONG_CHARS, HttpResponse, encode_in_chunks, json_response, send, to_json
from rocstar.sandbox.http.routes import HttpRequest, HttpRoute
from rocstar.sandbox.service import validation
from rocstar.sandbox.service.admission import Admission
from rocstar.sandbox.service.results import OutputBuffer
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError, Status


class ActionsBody(Struct, kw_only=True):
    """The texts of policies, one action per trajectory."""

    trajectory_ids: list[str]
    actions: list[str]
    finish: list[bool] | None = None
    is_last_step: list[bool] | None = None
    extra_fields: list[dict[str, Any]] | None = None


@lru_cache(maxsize=16)
def actions_model(service_limits: validation.ServiceLimits) -> validation.BodyModel[ActionsBody]:
    """Return the model of the body, within the limits of one service."""
    many = Meta(min_length=1, max_length=service_limits.max_calls_per_batch)
    actions = validation.narrow_model(ActionsBody, trajectory_ids=Annotated[list[str], many])
    return validation.BodyModel(actions, validation.close_model(actions))


class InvalidAction(Struct, forbid_unknown_fields=True):
    """The observation of an action without a program, and the reason."""

    invalid_reason: str
    obs: str = ""


class Observations(Struct, kw_only=True, forbid_unknown_fields=True):
    """The observation of each action, in their order."""

    observations: list[str | InvalidAction]
    dones: list[bool]
    valids: list[bool]
    processing_time_ms: float


class ToolServerHealth(Struct, kw_only=True, forbid_unknown_fields=True):
    """The process answers."""

    status: Literal["healthy"] = "healthy"
    active_tasks: int
    tools: list[str]
    uptime_seconds: float


WALL_S = 10.0
"""The time limit of the original server."""

LANGUAGES = {"python": "", "py": "", "bash": BASH, "sh": BASH}
"""Marks of a block, and the flavour that it asks for: none, where the program's imports choose."""

_OPENINGS = ((re.compile(r"<(python|bash)>"), "</{}>"), (re.compile(r"```\n?(python|py|bash|sh)\b"), "```"))
"""The opening of each kind of block, and its end with the language in braces."""

_INPUT = ("```input\n", "\n```")


@dataclass(frozen=True, slots=True)
class Step:
    """A decoded action. request: None if it has no program that can run here; `invalid` is then the reason.
    marks: the text before and after the observation."""

    request: ExecRequest | None
    marks: tuple[str, str]
    is_last: bool
    invalid: str = "no program was found"


def decode_actions(
    body: bytes, service_limits: validation.ServiceLimits, owner: str
) -> tuple[Sequence[Step], SelectedItems[ExecRequest]]:
    """Decode the actions. Return them and their programs. Raises RequestError with the errors of all."""
    actions = validation.parse_body(body, actions_model(service_limits))
    number = len(actions.trajectory_ids)
    given = {
        "actions": actions.actions,
        "finish": actions.finish,
        "is_last_step": actions.is_last_step,
        "extra_fields": actions.extra_fields,
    }
    validation.raise_field_errors(
        [
            validation.field_error(f"there are {len(values)} for {number} trajectory_ids; give one for each", name)
            for name, values in given.items()
            if values is not None and len(values) != number
        ]
    )
    finish = actions.finish or [False] * number
    extras = actions.extra_fields or [{}] * number
    steps: list[Step] = []
    found: list[validation.FieldError] = []
    for index, (action, is_last, extra) in enumerate(zip(actions.actions, finish, extras, strict=True)):
        try:
            steps.append(_decode_step(action, is_last, extra.get("stdin"), service_limits, owner))
        except RequestError as error:
            found.append(validation.field_error(str(error), error.field, index))
    validation.raise_field_errors(found)
    runnable = matching_indices(steps, lambda step: step.request is not None)
    packed = pack_items(steps)
    return packed, SelectedItems(packed, runnable, "request")


def _decode_step(
    action: str, is_last: bool, stdin: object, service_limits: validation.ServiceLimits, owner: str
) -> Step:
    """Decode an action. Raises RequestError for text that is invalid or too long."""
    validation.check_text(action, "actions")
    marks = observation_marks(action)
    language, code = ("", "") if is_last else extract_program(action)
    flavour = LANGUAGES.get(language, "") or service_limits.select_flavour(code)
    if not code or flavour not in service_limits.flavours:
        return Step(None, marks, is_last)
    if flavour == BASH and len(code.encode()) > MOST_SHELL_BYTES:  # one among many: the others run
        return Step(None, marks, is_last, f"a bash program of more than {MOST_SHELL_BYTES} bytes is not run")
    # The first block of input, else the field.
    _, begun, rest = action.partition(_INPUT[0])
    between, ended, _ = rest.partition(_INPUT[1])
    text = between.strip() if begun and ended else stdin if isinstance(stdin, str) else ""
    validation.check_text(text, "extra_fields")
    wall_s = min(WALL_S, service_limits.max_wall_s)
    limits = replace(service_limits.default_limits, wall_s=wall_s, cpu_s=int(WALL_S) + 1)
    request = ExecRequest(code=code, stdin=text, flavour=flavour, limits=limits, owner=owner)
    return Step(request, marks, is_last)


def extract_program(action: str) -> tuple[str, str]:
    """The language and the text of the blocks of an action, all those of the first one's language together;
    empty for an action without any."""
    for opening, closing in _OPENINGS:
        if blocks := list(_iter_blocks(action, opening, closing)):
            language = blocks[0][0]
            texts = (text.strip() for name, text in blocks if LANGUAGES[name] == LANGUAGES[language])
            return language, "\n".join(texts)
    return "", ""


def _iter_blocks(action: str, opening: re.Pattern[str], closing: str) -> Iterator[tuple[str, str]]:
    """Yield the language and text of each closed block. An end mark that was not found is not searched again:
    thousands of unclosed blocks would each search the whole text."""
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


def observation_marks(action: str) -> tuple[str, str]:
    """The marks that an observation has by those that the action itself uses."""
    if "```output" in action or "```python" in action:
        return ("\n```result\n" if action.count("```") % 2 == 0 else "\n"), "\n```\n"
    if "</tool_call>" in action:
        return "\n<tool_response>\n```result\n", "\n```\n</tool_response>\n"
    if action.rstrip(" \n").endswith("<result>"):
        return "\n", "\n</result>\n"
    return "\n<result>\n", "\n</result>\n"


MAX_OBSERVATION_CHARS = 100_000
"""The length to which the original server truncates."""

FEW = 64
"""The number of actions whose observations are encoded in the event loop."""


@dataclass(eq=False)
class VerlTool:
    """The handlers. Invariant: actions are parsed outside the event loop, in time linear in the text."""

    admission: Admission
    service_limits: validation.ServiceLimits
    body_reader: BodyReader
    began_s: float = field(default_factory=time.monotonic)

    def routes(self) -> list[HttpRoute]:
        return [HttpRoute("POST", "/get_observation", self.observe), HttpRoute("GET", "/health", self.health)]

    async def health(self, request: HttpRequest) -> web.Response:
        tools = ["python_code", *(("bash",) if "bash" in self.service_limits.flavours else ()), "finish"]
        uptime_s, active = time.monotonic() - self.began_s, self.admission.metrics.in_flight
        return json_response(ToolServerHealth(active_tasks=active, tools=tools, uptime_seconds=uptime_s))

    async def observe(self, request: HttpRequest) -> web.StreamResponse:
        began_s = time.monotonic()
        owner = request.owner
        decode = partial(decode_actions, service_limits=self.service_limits, owner=owner)
        steps, programs = await self.body_reader.parse(request, decode)
        with OutputBuffer(self.admission.held, owner) as held:
            texts = await self._texts(programs, held)
            milliseconds = (time.monotonic() - began_s) * 1e3
            if len(steps) <= FEW and sum(map(len, texts.values())) < LONG_CHARS:
                body = to_json(_to_observations(steps, texts, milliseconds))
            else:
                body = await asyncio.to_thread(lambda: encode_in_chunks(_to_observations(steps, texts, milliseconds)))
            return await send(request, HttpResponse(status=200, body=body))

    async def _texts(self, programs: SelectedItems[ExecRequest], held: OutputBuffer) -> dict[int, str]:
        """Return the observation of each program, by the index of its action. Raises SandboxError if one has
        no result; the others are then killed."""
        texts: dict[int, str] = {}
        if not programs:
            return texts
        yielder = LoopYielder()
        async with aclosing(self.admission.run_batch(programs)) as outcomes:
            async for place, outcome in outcomes:
                if isinstance(outcome, SandboxError):
                    raise outcome
                text = texts[programs.indices[place]] = format_observation(held.truncate(outcome))
                held.take(len(text))
                await yielder.pause()
        return texts


def format_observation(result: ExecResult) -> str:
    """Return the observation of a program: its output, and a line if it timed out."""
    late = f"Execution timed out after {WALL_S:g} seconds.\n" if result.status is Status.TIMEOUT else ""
    text = f"{result.stdout}\n{result.stderr}{late}".strip(" \n")
    if not text and result.status not in (Status.OK, Status.ERROR):
        text = f"the program ended by {result.status}"
    return text[:MAX_OBSERVATION_CHARS]


def _to_observations(steps: Sequence[Step], texts: dict[int, str], milliseconds: float) -> Observations:
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
