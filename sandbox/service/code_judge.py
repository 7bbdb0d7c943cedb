"""code-judge's dialect at the root: its eight routes, schemas, reasons and order.

Differences that are meant are listed in docs/reference/service.md; the rest is held against recordings of the
original.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

from rocstar.sandbox.service.answers import (
    JudgeAnswer,
    JudgeAnswers,
    JudgeReason,
    QueueStatus,
    RunAnswer,
    RunAnswers,
)
from rocstar.sandbox.service.calls import Admission, Outcome
from rocstar.sandbox.service.decode_code_judge import (
    JudgeOptions,
    Submission,
    decode_submission,
    decode_submissions,
)
from rocstar.sandbox.service.http import filled, may_pass, send, to_json
from rocstar.sandbox.service.idempotency import HttpAnswer
from rocstar.sandbox.service.incoming import Incoming
from rocstar.sandbox.service.metrics import Metrics
from rocstar.sandbox.service.outputs import HeldOutput, send_held
from rocstar.sandbox.service.request import HttpRequest
from rocstar.sandbox.service.routes import HttpRoute
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.service.turns import Turns
from rocstar.sandbox.service.written import written
from rocstar.sandbox.types import ExecResult, SandboxError, Status

TIMEOUT_LINE = "Suicide from timeout.\n"
PONG = b'"pong"'


class CodeJudge:
    """The handlers. `num_workers`: what /status tells, asked each time."""

    def __init__(
        self,
        admission: Admission,
        metrics: Metrics,
        rules: Rules,
        options: JudgeOptions,
        incoming: Incoming,
        *,
        num_workers: Callable[[], int],
    ) -> None:
        self._admission = admission
        self._metrics = metrics
        self._rules = rules
        self._options = options
        shared = rules.default_limits
        self._limits = replace(options.limits, file_bytes=shared.file_bytes, files=shared.files)
        self._incoming = incoming
        self._num_workers = num_workers

    def routes(self) -> list[HttpRoute]:
        wait_s, long_wait_s = float(self._options.wait_s), float(self._options.long_batch_wait_s)
        routes = [HttpRoute("GET", "/ping", self.ping), HttpRoute("GET", "/status", self.status)]
        for verb in ("run", "judge"):
            shown = verb == "run"
            routes += [
                HttpRoute("POST", f"/{verb}", self._single(shown, wait_s)),
                HttpRoute("POST", f"/{verb}/batch", self._batch(shown, wait_s)),
                HttpRoute("POST", f"/{verb}/long-batch", self._batch(shown, long_wait_s)),
            ]
        return routes

    async def ping(self, request: HttpRequest) -> web.Response:
        return web.Response(body=PONG, content_type="application/json")

    async def status(self, request: HttpRequest) -> web.Response:
        num_workers = self._num_workers()
        waiting = max(0, self._metrics.in_flight - num_workers)
        return _json(QueueStatus(queue=waiting, num_workers=num_workers))

    def _single(self, with_output: bool, wait_s: float) -> Any:
        async def handler(request: HttpRequest) -> web.StreamResponse:
            body, owner = await self._incoming.read(request), request.owner
            decode = partial(decode_submission, rules=self._rules, limits=self._limits, owner=owner)
            submission = await self._incoming.decoded(owner, body, decode)
            del body
            outcome: Outcome | None = None
            if submission.request is not None:
                try:
                    outcome = await self._admission.run(submission.request, wait_s)
                except SandboxError as error:
                    outcome = error
            answer = await _written(self._answer(submission, outcome, with_output, wait_s))
            with HeldOutput(self._admission.held, owner) as held:
                return await send_held(request, HttpAnswer(status=200, body=answer), held)

        return handler

    def _batch(self, with_output: bool, wait_s: float) -> Any:
        async def handler(request: HttpRequest) -> web.StreamResponse:
            body, owner = await self._incoming.read(request), request.owner
            decode = partial(decode_submissions, rules=self._rules, limits=self._limits, owner=owner)
            batch = await self._incoming.decoded(owner, body, decode)
            del body
            submissions, sent = batch.items, batch.sent()
            results, turns = [b""] * len(submissions), Turns()
            with HeldOutput(self._admission.held, owner) as held:
                if sent:
                    async for position, outcome in self._admission.run_batch(sent, wait_s):
                        index, shown = batch.runnable[position], 0 if held.full else None
                        answer = self._answer(submissions[index], outcome, with_output, wait_s, shown)
                        results[index] = await _written(answer)
                        held.take(len(results[index]))
                        await turns.pause()
                for index, result in enumerate(results):
                    if not result:
                        answer = self._answer(submissions[index], None, with_output, wait_s)
                        results[index] = await _written(answer)
                        await turns.pause()
                empty = RunAnswers if with_output else JudgeAnswers
                head = await written(empty(sub_id=batch.sub_id, results=[]), len(batch.sub_id))
                body = await filled(head, results)
                return await send(request, HttpAnswer(status=200, body=body))

        return handler

    def _answer(
        self,
        submission: Submission,
        outcome: Outcome | None,
        with_output: bool,
        wait_s: float,
        shown: int | None = None,
    ) -> RunAnswer | JudgeAnswer:
        """One result. `outcome` is None when nothing ran. `shown`: characters of each text, as the options
        have it if None."""
        if isinstance(outcome, ExecResult):
            return self._judged(submission, outcome, with_output, shown)
        reason: JudgeReason = submission.reason or "internal_error"
        cost = 0.0
        if outcome is not None and may_pass(outcome):
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
        limit_s = self._options.execution_s
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
        shown = self._options.shown_chars if shown is None else shown
        if over and result.status in (Status.TIMEOUT, Status.OK):
            stdout = stdout[:shown] + TIMEOUT_LINE
        return RunAnswer(**head, stdout=stdout[:shown], stderr=result.stderr[:shown])


async def _written(answer: RunAnswer | JudgeAnswer) -> bytes:
    """Its id is the client's, of any length."""
    shown = len(answer.stdout or "") + len(answer.stderr or "") if isinstance(answer, RunAnswer) else 0
    return await written(answer, len(answer.sub_id) + shown)


def _json(value: Any) -> web.Response:
    return web.Response(body=to_json(value), content_type="application/json")
