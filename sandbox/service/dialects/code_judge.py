"""The code-judge dialect, at the root: its routes, schemas, reasons and order.

docs/reference/service.md lists the intended differences; the rest is compared with recordings of the original
server (tests/sandbox/service/recordings/code_judge.json).
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import Meta, Struct

from rocstar.sandbox.http.bodies import BodyReader, LoopYielder
from rocstar.sandbox.http.errors import RequestError, SchemaError
from rocstar.sandbox.http.packed_items import SelectedItems, matching_indices, pack_items
from rocstar.sandbox.http.responses import HttpResponse, encode_json, fill_list, json_response, send
from rocstar.sandbox.http.routes import HttpRequest, HttpRoute
from rocstar.sandbox.service.admission import Admission, Outcome
from rocstar.sandbox.service.results import OutputBuffer, is_retryable, send_buffered
from rocstar.sandbox.service.validation import (
    LISTS,
    SCRIPT_END,
    BodyModel,
    ServiceLimits,
    check_text,
    close_model,
    field_error,
    narrow_model,
    parse_body,
)
from rocstar.sandbox.types import MAX_OUTPUT_BYTES, ExecRequest, ExecResult, Limits, SandboxError, Status

# The fields of bodies are in the order in which that server reports their errors.

JudgeType = Literal["python", "cpp", "math"]


class SubmissionBody(Struct, kw_only=True):
    """A program to judge."""

    sub_id: str | None = None
    type: JudgeType
    options: dict[str, str] | None = None
    solution: str
    input: str | None = None
    expected_output: str | None = None


class SubmissionsBody(Struct, kw_only=True):
    """Many programs to judge."""

    sub_id: str | None = None
    type: Literal["batch"] = "batch"
    submissions: list[SubmissionBody]


@lru_cache(maxsize=16)
def judge_bodies(service_limits: ServiceLimits) -> tuple[BodyModel[SubmissionBody], BodyModel[SubmissionsBody]]:
    """Return the models of both bodies, within the limits of one service."""
    many = Meta(min_length=1, max_length=service_limits.max_calls_per_batch)
    submission = narrow_model(SubmissionBody)
    exact = close_model(submission)
    submissions = BodyModel(
        narrow_model(SubmissionsBody, submissions=Annotated[LISTS[submission], many]),
        close_model(narrow_model(SubmissionsBody, submissions=Annotated[LISTS[exact], many])),
    )
    return BodyModel(submission, exact), submissions


JudgeReason = Literal["", "worker_timeout", "queue_timeout", "internal_error", "invalid_input"]


class JudgeAnswer(Struct, forbid_unknown_fields=True):
    """The judgement of a submission."""

    sub_id: str
    success: bool
    run_success: bool
    cost: float
    reason: JudgeReason


class RunAnswer(Struct, forbid_unknown_fields=True):
    """The judgement of a submission, with the beginning of its output."""

    sub_id: str
    success: bool
    run_success: bool
    cost: float
    stdout: str | None
    stderr: str | None
    reason: JudgeReason


class JudgeAnswers(Struct, forbid_unknown_fields=True):
    """An answer for each submission, in their order."""

    sub_id: str
    results: list[JudgeAnswer]


class RunAnswers(Struct, forbid_unknown_fields=True):
    """An answer for each submission, in their order."""

    sub_id: str
    results: list[RunAnswer]


class QueueStatus(Struct, forbid_unknown_fields=True):
    """The number of waiting submissions, and the number that run at a time."""

    queue: int
    num_workers: int


OUTPUT_BYTES = 8 << 20
"""The output kept per stream: the original judges all of it, even if it shows little."""

EARLY_S = 0.005
"""A program is killed this long before its limit, so that one that sleeps until the limit cannot print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """code-judge's settings under their own names in the environment; all hold for every submission.

    Args:
        execution_s: MAX_EXECUTION_TIME.
        memory_bytes: MAX_MEMORY in MiB, above the zygote's own.
        shown_chars: MAX_STDOUT_ERROR_LENGTH.
        queue_s: MAX_QUEUE_WORK_LIFE_TIME.
        long_wait_s: LONG_BATCH_MAX_QUEUE_WAIT_TIME.
        workers: MAX_WORKERS, None when not set.
    """

    execution_s: int = 10
    memory_bytes: int = 256 << 20
    shown_chars: int = 1000
    queue_s: int = 4
    long_wait_s: int | None = None
    workers: int | None = None

    @property
    def process_s(self) -> int:
        return self.execution_s + 5

    @property
    def wait_s(self) -> int:
        """Return the waiting time of a client for a submission outside a long batch."""
        return self.process_s + self.queue_s

    @property
    def limits(self) -> Limits:
        return Limits(
            wall_s=self.execution_s - EARLY_S,
            cpu_s=self.execution_s + 1,
            memory_bytes=self.memory_bytes,
            output_bytes=min(OUTPUT_BYTES, MAX_OUTPUT_BYTES),
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "JudgeOptions":
        """Raises ValueError naming the variable."""

        def number(name: str, default: int, low: int, high: int) -> int:
            text = environment.get(name, "").strip()
            if not text:
                return default
            try:
                value = int(text)
            except ValueError:
                raise ValueError(f"{name} is {text!r} in the environment; give a whole number") from None
            if not low <= value <= high:
                raise ValueError(f"{name} is {value} in the environment; it must lie in [{low}, {high}]")
            return value

        execution_s = number("MAX_EXECUTION_TIME", 10, 1, 86_400)
        shortest = 3600 + execution_s + 5
        return cls(
            execution_s=execution_s,
            memory_bytes=number("MAX_MEMORY", 256, 1, 1 << 26) << 20,
            shown_chars=number("MAX_STDOUT_ERROR_LENGTH", 1000, 0, 1 << 30),
            queue_s=number("MAX_QUEUE_WORK_LIFE_TIME", 4, 0, 86_400),
            long_wait_s=number("LONG_BATCH_MAX_QUEUE_WAIT_TIME", shortest, shortest, 30 * 86_400),
            workers=number("MAX_WORKERS", 0, 0, 1 << 16) or None,
        )


@dataclass(frozen=True, slots=True)
class Submission:
    """A program to judge. request: None if it cannot run; `reason` is then the reason of the response.
    expected_output: without surrounding white space, which is ignored."""

    sub_id: str
    request: ExecRequest | None
    expected_output: str | None
    reason: JudgeReason = ""
    message: str = ""


def decode_submission(body: bytes, service_limits: ServiceLimits, limits: Limits, owner: str = "") -> Submission:
    """Decode a body of /run or /judge. Raises SchemaError for text that is invalid, such as an unpaired
    surrogate."""
    model, _ = judge_bodies(service_limits)
    submission = _decode_submission(parse_body(body, model), service_limits, limits, owner)
    if submission.reason == "invalid_input":
        name = submission.message.split(" ", 1)[0]
        raise SchemaError.of([field_error(submission.message, name).detail()])
    return submission


def decode_submissions(
    body: bytes, service_limits: ServiceLimits, limits: Limits, owner: str = ""
) -> tuple[str, Sequence[Submission], SelectedItems[ExecRequest]]:
    """Decode a body of the batch routes. Return its id, its submissions, and the programs of those that can
    run. An error in one submission rejects all, as in the original."""
    _, model = judge_bodies(service_limits)
    batch = parse_body(body, model)
    items = [_decode_submission(item, service_limits, limits, owner) for item in batch.submissions]
    runnable = matching_indices(items, lambda item: item.request is not None)
    packed = pack_items(items)
    return batch.sub_id or str(uuid.uuid4()), packed, SelectedItems(packed, runnable, "request")


def _decode_submission(body: SubmissionBody, service_limits: ServiceLimits, limits: Limits, owner: str) -> Submission:
    sub_id = body.sub_id or str(uuid.uuid4())
    expected = None if body.expected_output is None else body.expected_output.strip()
    if body.type == "math" or (body.type == "cpp" and "cpp" not in service_limits.flavours):
        return Submission(sub_id, None, expected, "internal_error")
    code, stdin = body.solution, body.input or ""
    try:
        check_text(code, "solution")
        check_text(stdin, "input")
        if body.type == "cpp":
            request = ExecRequest(code=code, stdin=stdin, limits=limits, flavour="cpp", owner=owner)
        else:
            flavour, code = service_limits.select_flavour(code), code + SCRIPT_END
            request = ExecRequest(code=code, stdin=stdin, limits=limits, flavour=flavour, owner=owner)
    except RequestError as error:
        return Submission(sub_id, None, expected, "invalid_input", str(error))
    except ValueError as error:  # exactly at the limit of length before SCRIPT_END came
        return Submission(sub_id, None, expected, "invalid_input", f"solution: {error}")
    return Submission(sub_id, request, expected)


TIMEOUT_LINE = "Suicide from timeout.\n"


@dataclass(eq=False)
class CodeJudge:
    """The handlers. `num_workers`: returns the number for /status."""

    admission: Admission
    service_limits: ServiceLimits
    options: JudgeOptions
    body_reader: BodyReader
    num_workers: Callable[[], int]

    def __post_init__(self) -> None:
        shared = self.service_limits.default_limits
        self._limits = replace(self.options.limits, file_bytes=shared.file_bytes, files=shared.files)

    def routes(self) -> list[HttpRoute]:
        wait_s, long_wait_s = float(self.options.wait_s), self.options.long_wait_s
        if long_wait_s is None:
            long_wait_s = 3600 + self.options.process_s
        routes = [HttpRoute("GET", "/status", self.status)]
        for verb in ("run", "judge"):
            single = partial(self._single, with_output=verb == "run")
            batch = partial(self._batch, with_output=verb == "run")
            routes += [
                HttpRoute("POST", f"/{verb}", partial(single, wait_s=wait_s)),
                HttpRoute("POST", f"/{verb}/batch", partial(batch, wait_s=wait_s)),
                HttpRoute("POST", f"/{verb}/long-batch", partial(batch, wait_s=float(long_wait_s))),
            ]
        return routes

    async def status(self, request: HttpRequest) -> web.Response:
        num_workers = self.num_workers()
        waiting = max(0, self.admission.metrics.in_flight - num_workers)
        return json_response(QueueStatus(queue=waiting, num_workers=num_workers))

    async def _single(self, request: HttpRequest, with_output: bool, wait_s: float) -> web.StreamResponse:
        owner = request.owner
        decode = partial(decode_submission, service_limits=self.service_limits, limits=self._limits, owner=owner)
        submission = await self.body_reader.parse(request, decode)
        outcome: Outcome | None = None
        if submission.request is not None:
            try:
                outcome = await self.admission.run(submission.request, wait_s)
            except SandboxError as error:
                outcome = error
        answer = await _encode_answer(self._answer(submission, outcome, with_output, wait_s))
        with OutputBuffer(self.admission.held, owner) as held:
            return await send_buffered(request, HttpResponse(status=200, body=answer), held)

    async def _batch(self, request: HttpRequest, with_output: bool, wait_s: float) -> web.StreamResponse:
        owner = request.owner
        decode = partial(decode_submissions, service_limits=self.service_limits, limits=self._limits, owner=owner)
        sub_id, submissions, programs = await self.body_reader.parse(request, decode)
        results, yielder = [b""] * len(submissions), LoopYielder()
        with OutputBuffer(self.admission.held, owner) as held:
            if programs:
                async for position, outcome in self.admission.run_batch(programs, wait_s):
                    index, shown = programs.indices[position], 0 if held.full else None
                    answer = self._answer(submissions[index], outcome, with_output, wait_s, shown)
                    results[index] = await _encode_answer(answer)
                    held.take(len(results[index]))
                    await yielder.pause()
            for index, result in enumerate(results):
                if not result:
                    answer = self._answer(submissions[index], None, with_output, wait_s)
                    results[index] = await _encode_answer(answer)
                    await yielder.pause()
            empty = RunAnswers if with_output else JudgeAnswers
            head = await encode_json(empty(sub_id=sub_id, results=[]), len(sub_id))
            body = await fill_list(head, results)
            return await send(request, HttpResponse(status=200, body=body))

    def _answer(
        self,
        submission: Submission,
        outcome: Outcome | None,
        with_output: bool,
        wait_s: float,
        shown: int | None = None,
    ) -> RunAnswer | JudgeAnswer:
        """Return one result. `outcome`: None if nothing ran. `shown`: the number of characters of each text,
        None for the option's value."""
        if isinstance(outcome, ExecResult):
            return self._judged(submission, outcome, with_output, shown)
        reason: JudgeReason = submission.reason or "internal_error"
        cost = 0.0
        if outcome is not None and is_retryable(outcome):
            # The one reason that those clients retry. A deadline passed after exactly the wait.
            reason, cost = "queue_timeout", wait_s if outcome.kind == "deadline" else 0.0
        head: dict[str, Any] = {"sub_id": submission.sub_id, "success": False, "run_success": False}
        if with_output:
            stderr = submission.message or None
            return RunAnswer(**head, cost=cost, stdout=None, stderr=stderr, reason=reason)
        return JudgeAnswer(**head, cost=cost, reason=reason)

    def _judged(
        self, submission: Submission, result: ExecResult, with_output: bool, shown: int | None
    ) -> RunAnswer | JudgeAnswer:
        # A program that ends in the moment it is to be killed has run too long all the same: what counts is
        # the measured time, so that sleep(10) under a limit of 10 s is a timeout every time.
        limit_s = self.options.execution_s
        over = result.status is Status.TIMEOUT or result.wall_s >= limit_s
        run_success = result.status is Status.OK and not over
        expected = submission.expected_output
        stdout = result.stdout
        head: dict[str, Any] = {
            "sub_id": submission.sub_id,
            "success": run_success and (expected is None or stdout.strip() == expected),
            "run_success": run_success,
            "cost": max(result.wall_s, limit_s) if over else result.wall_s,
            "reason": "worker_timeout" if over else "",
        }
        if not with_output:
            return JudgeAnswer(**head)
        shown = self.options.shown_chars if shown is None else shown
        if over and result.status in (Status.TIMEOUT, Status.OK):
            stdout = stdout[:shown] + TIMEOUT_LINE
        return RunAnswer(**head, stdout=stdout[:shown], stderr=result.stderr[:shown])


async def _encode_answer(answer: RunAnswer | JudgeAnswer) -> bytes:
    """Encode a result. Its id comes from the client and may have any length."""
    shown = len(answer.stdout or "") + len(answer.stderr or "") if isinstance(answer, RunAnswer) else 0
    return await encode_json(answer, len(answer.sub_id) + shown)
