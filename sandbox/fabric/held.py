"""What a worker keeps about an entry that it holds, and how its answers are made fit to travel."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from rocstar.sandbox.fabric.errors import too_large_error
from rocstar.sandbox.fabric.link import make_ref
from rocstar.sandbox.fabric.wire import MAX_ANSWER_BYTES, Answer, Outcome, encode_answers
from rocstar.sandbox.types import SandboxError


@dataclass(slots=True, eq=False, kw_only=True)
class Held:
    """An entry that this worker has taken and not yet finished.

    Args:
        waiting: calls without an answer.
        unstored: answers not yet in Redis.
        partial: some answers were stored before the entry was complete.
        era: the link's, when the entry was delivered.
    """

    flavour: str
    stream_id: str
    client: str
    deliveries: int
    era: int
    waiting: set[int] = field(default_factory=set)
    unstored: int = 0
    partial: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def ref(self) -> str:
        return make_ref(self.flavour, self.stream_id)


Stored = tuple[Held, int | None, Outcome]
"""An answer to be stored; the id is None when it speaks for all calls of the entry."""


def portable(outcome: Outcome) -> Outcome:
    """A pool that is closed here says nothing about the other workers."""
    if isinstance(outcome, SandboxError) and outcome.kind == "closed":
        return SandboxError(str(outcome), kind="closed", retryable=True)
    return outcome


def encode_portions(answers: list[Answer], most: int = MAX_ANSWER_BYTES) -> Iterator[bytes]:
    """One message, or one each when that is too large; an answer that is too large alone is an error."""
    blob = encode_answers(answers)
    if len(blob) <= most:
        yield blob
    elif len(answers) > 1:
        for answer in answers:
            yield from encode_portions([answer], most)
    else:
        error = too_large_error(len(blob), most)
        yield encode_answers([Answer(ref=answers[0].ref, call_id=answers[0].call_id, outcome=error)])
