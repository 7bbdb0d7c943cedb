"""Numbered programs in batches, for benchmarks that kill what runs them: is one lost, or answered twice?"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from rocstar.sandbox.types import BatchSandbox, ExecRequest, ExecResult, SandboxError


class Load:
    """Batches until told to stop, `lane` by lane. answers: how often each number was answered. open: numbers
    without an answer. lost: those that ended in an error of ours; wrong: in another program's answer."""

    def __init__(self, sandbox: BatchSandbox, *, batch: int) -> None:
        self._sandbox = sandbox
        self._batch = batch
        self._next = 0
        self._answered = asyncio.Event()
        self.stopping = False
        self.open: set[int] = set()
        self.answers: Counter[int] = Counter()
        self.lost: list[str] = []
        self.wrong: list[str] = []
        self.finished_at: list[float] = []

    @property
    def asked(self) -> int:
        return self._next

    @property
    def missing(self) -> int:
        """Numbers that were never answered."""
        return self.asked - len(self.answers)

    @property
    def twice(self) -> int:
        return sum(count > 1 for count in self.answers.values())

    @property
    def longest_gap_s(self) -> float:
        """Between two answers."""
        gaps = (b - a for a, b in zip(self.finished_at, self.finished_at[1:], strict=False))
        return max(gaps, default=0.0)

    async def lane(self) -> None:
        while not self.stopping:
            first, self._next = self._next, self._next + self._batch
            self.open.update(range(first, self._next))
            requests = [ExecRequest(code=f"print({first + index})") for index in range(self._batch)]
            async for index, outcome in self._sandbox.run_batch(requests):
                self.take(first + index, outcome)

    def take(self, number: int, outcome: ExecResult | SandboxError) -> None:
        self.answers[number] += 1
        self.open.discard(number)
        self.finished_at.append(time.monotonic())
        self._answered.set()
        if isinstance(outcome, SandboxError):
            self.lost.append(f"{number}: {outcome.kind}: {outcome}")
        elif outcome.stdout != f"{number}\n":
            self.wrong.append(f"{number}: {outcome.status} {outcome.stdout[:80]!r}")

    async def answered(self, numbers: set[int]) -> None:
        """Returns when all of them are."""
        while numbers & self.open:
            self._answered.clear()
            await self._answered.wait()
