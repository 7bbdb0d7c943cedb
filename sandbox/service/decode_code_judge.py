"""Bodies of code-judge's dialect to typed submissions. Pure; the answers to mistakes are held against
recordings of the real server (tests/sandbox/service/recordings/code_judge.json)."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from rocstar.sandbox.service.answers import JudgeReason
from rocstar.sandbox.service.borrowed import fault, read_body
from rocstar.sandbox.service.decode import check_text
from rocstar.sandbox.service.errors import Refused, SchemaError
from rocstar.sandbox.service.models import SubmissionBody, models_of
from rocstar.sandbox.service.packed import Chosen, packed, places
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.types import MAX_OUTPUT_BYTES, ExecRequest, Limits

SCRIPT_END = "\npass\n"
"""Appended to a Python submission: a script shows no trailing value, so none is computed."""

OUTPUT_BYTES = 8 << 20
"""Kept per stream: the original judges all of it, however little it then shows."""

EARLY_S = 0.005
"""So much before the limit a program is killed: one that sleeps as long must not get to print."""


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
        """How long a client waits for a submission that is not in a long batch."""
        return self.process_s + self.queue_s

    @property
    def long_batch_wait_s(self) -> int:
        return 3600 + self.process_s if self.long_wait_s is None else self.long_wait_s

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
    """One program to judge. request: None when it cannot run; `reason` then says why, as the answer will.
    expected_output: without blanks around it, which do not count."""

    sub_id: str
    request: ExecRequest | None
    expected_output: str | None
    reason: JudgeReason = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Submissions:
    """Those of a batch. `runnable`: the places of those that can run."""

    sub_id: str
    items: Sequence[Submission]
    runnable: Sequence[int]

    def sent(self) -> Sequence[ExecRequest]:
        """The programs of those that can run."""
        return Chosen(self.runnable, lambda index: cast(ExecRequest, self.items[index].request))


def decode_submission(body: bytes, rules: Rules, limits: Limits, owner: str = "") -> Submission:
    """A body of /run or /judge. What no program can be given (half a surrogate pair, say) is refused."""
    submission = _submission(read_body(body, models_of(rules).submission), rules, limits, owner)
    if submission.reason == "invalid_input":
        name = submission.message.split(" ", 1)[0]
        raise SchemaError.of([fault(submission.message, name).detail()])
    return submission


def decode_submissions(body: bytes, rules: Rules, limits: Limits, owner: str = "") -> Submissions:
    """A body of the batch routes. A mistake of one refuses all, as there."""
    batch = read_body(body, models_of(rules).submissions)
    items = [_submission(item, rules, limits, owner) for item in batch.submissions]
    runnable = places(items, lambda item: item.request is not None)
    return Submissions(batch.sub_id or new_id(), packed(items), runnable)


def new_id() -> str:
    return str(uuid.uuid4())


def _submission(body: SubmissionBody, rules: Rules, limits: Limits, owner: str) -> Submission:
    sub_id = body.sub_id or new_id()
    expected = None if body.expected_output is None else body.expected_output.strip()
    if body.type == "math" or (body.type == "cpp" and "cpp" not in rules.flavours):
        return Submission(sub_id, None, expected, "internal_error")
    code, stdin = body.solution, body.input or ""
    try:
        check_text(code, "solution")
        check_text(stdin, "input")
        if body.type == "cpp":
            request = ExecRequest(code=code, stdin=stdin, limits=limits, flavour="cpp", owner=owner)
        else:
            flavour, code = rules.choose(code), code + SCRIPT_END
            request = ExecRequest(code=code, stdin=stdin, limits=limits, flavour=flavour, owner=owner)
    except Refused as refusal:
        return Submission(sub_id, None, expected, "invalid_input", str(refusal))
    except ValueError as error:  # exactly at the limit of length before SCRIPT_END came
        return Submission(sub_id, None, expected, "invalid_input", f"solution: {error}")
    return Submission(sub_id, request, expected)
