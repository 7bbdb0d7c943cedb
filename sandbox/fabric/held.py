"""What a worker keeps about an entry that it holds, and which answers travel together."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from rocstar.sandbox.fabric.link import make_ref
from rocstar.sandbox.fabric.wire import LIGHT, Answer, Outcome, weight
from rocstar.sandbox.types import SandboxError

MOST_ANSWERS = 64
"""In one message: to settle so many takes a client a millisecond."""


@dataclass(slots=True, eq=False, kw_only=True)
class Held:
    """An entry that this worker has taken and not yet finished.

    Args:
        pieces: the name of those that its message has beside it, or nothing.
        waiting: calls without an answer.
        unstored: answers not yet in Redis.
        partial: some answers were stored before the entry was complete.
        era: the link's, when the entry was delivered.
    """

    flavour: str
    stream_id: str
    client: str
    pieces: str
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


def portions(answers: list[Answer]) -> Iterator[list[Answer]]:
    """Those of each message: few light ones, or one that is not."""
    portion: list[Answer] = []
    total = 0
    for answer in answers:
        size = weight(answer.outcome)
        if portion and (total + size > LIGHT or len(portion) == MOST_ANSWERS):
            yield portion
            portion, total = [], 0
        portion.append(answer)
        total += size
    if portion:
        yield portion


def is_light(portion: list[Answer]) -> bool:
    return sum(weight(answer.outcome) for answer in portion) <= LIGHT
