"""The inference protocol (contract 3). `generate` waits until its tokens exist, `publish` until the new
weights serve every later token.

All log-probs are fp32 `log_softmax(logits / T)[token]` (contract 1).
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from rocstar.engine.inference.weights import WeightSource


class StopReason(StrEnum):
    """Why a completion ended."""

    stop = "stop"
    length = "length"
    aborted = "aborted"


class InferenceError(Exception):
    """A failure of the engine, never of the policy. The trajectory becomes Failed(kind)."""

    def __init__(self, kind: str, detail: str, *, retryable: bool) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail, self.retryable = kind, detail, retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Training uses the plain softmax: no top_p, no top_k."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature must be >= 0 (0 = greedy), got {self.temperature}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One completion: `ids` with the stop token included, one log-prob per id; NaN where the engine has none.

    `version_spans`: (start, end, version) over `ids`. `cached_tokens`: prompt tokens whose KV was reused.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version_spans: tuple[tuple[int, int, int], ...]
    finish: StopReason
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLoad:
    """KV capacity in tokens and requests now on the engine.

    `held_bytes`: memory that the KV cache takes now; 0 if unknown.
    """

    total: int
    used: int
    running: int
    waiting: int
    held_bytes: int = 0


def check_request(
    ids: list[int],
    max_new_tokens: int,
    seed: int,
    *,
    request_id: str,
    live: Container[str],
    vocab_size: int,
    max_length: int | None = None,
) -> None:
    """Raise InferenceError (bad_request, too_long, bad_token) for arguments that no engine can serve.

    live: request ids that have a request. max_length: of ids and new tokens together; None without a limit.
    """
    if request_id in live:
        raise InferenceError("bad_request", f"{request_id!r} has a request already", retryable=False)
    if not 0 <= seed < 1 << 64:
        raise InferenceError("bad_request", f"seed {seed} is outside [0, 2**64)", retryable=False)
    if not ids or max_new_tokens < 1:
        detail = f"{len(ids)} ids, {max_new_tokens} new tokens"
        raise InferenceError("bad_request", detail, retryable=False)
    if max_length is not None and len(ids) + max_new_tokens > max_length:
        detail = f"{len(ids)} + {max_new_tokens} tokens exceed the engine's {max_length}"
        raise InferenceError("too_long", detail, retryable=False)
    # An id that does not fit 32 bits raises. A turn brings its whole prefix along: this is five times as fast
    # as min and max of a list.
    try:
        highest = int(np.frombuffer(array("I", ids), dtype=np.uintc).max())
    except OverflowError:
        highest = vocab_size
    if highest >= vocab_size:
        raise InferenceError("bad_token", f"an id is outside [0, {vocab_size})", retryable=False)


class Inference(Protocol):
    """Anything that continues token ids."""

    async def generate(
        self,
        ids: list[int],
        *,
        max_new_tokens: int,
        stop_ids: frozenset[int],
        sampling: Sampling,
        seed: int,
        request_id: str,
        deadline: float | None,
    ) -> Generation:
        """Continue `ids`. `deadline` is on the running loop's clock; past it TimeoutError is raised.

        `seed` names the noise stream of the trajectory; the noise of a token depends on (seed, position).
        `request_id` names the trajectory: its KV may be kept for the next turn until `release`.
        """

    def load(self) -> KvLoad: ...

    async def publish(self, version: int, source: WeightSource | None = None) -> None:
        """Make `source` serve every token from now on, as `version`; None: the learner's own tensors."""

    async def abort(self, request_id: str) -> None:
        """Stop the request if it runs; it answers with its tokens so far, finish = aborted.

        An engine with short requests may let them end: the default does nothing.
        """
        return

    def join(self, request_ids: Sequence[str]) -> None:
        """These trajectories are about to start. An engine in lockstep waits for all of them."""
        return

    def on_grant(self, request_id: str, granted: Callable[[], None]) -> None:
        """Before a trajectory's first request: call `granted`, on the event loop, when that gets its place.

        The trajectory's clock starts then (contract 16). An engine that holds requests back until it has room
        calls it when it has, once or more; one that does not: what derives from this calls it at once.
        `release` ends it.
        """
        granted()

    def release(self, request_id: str) -> None:
        """The trajectory is over: its KV may go."""
        return


Heard = Callable[[int, int, float], None]
"""Called with one token: its position in the present completion, from 0, its id, and its log-prob; NaN for one that
the engine reports at the end."""


@runtime_checkable
class TellsTokens(Protocol):
    """An engine that reports tokens as they arrive. Other engines report them when a completion ends."""

    def on_tokens(self, request_id: str, heard: Heard) -> None:
        """From the trajectory's next request on, call `heard`, on the event loop, for every token in order;
        all of them before `generate` returns. `release` ends it.
        """


@runtime_checkable
class TakesBranches(Protocol):
    """An engine that copies the KV of a trajectory for its branches. Another finds the equal prefix itself, or
    computes it again."""

    def branch(self, request_id: str, branches: Sequence[str]) -> None:
        """`branches` are about to continue the present tokens of `request_id`. In lockstep they join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """How likely given ids are: an entry per id behind the first, which has nothing before it.

    All log-probs are fp32 log_softmax(logits / T); those of T = 0 are those of T = 1.

    Attributes:
        logprobs: of each id, behind all before it.
        best_ids: the likeliest id at each place.
        best_logprobs: of these.
    """

    logprobs: tuple[float, ...]
    best_ids: tuple[int, ...]
    best_logprobs: tuple[float, ...]


@runtime_checkable
class ScoresPrompts(Protocol):
    """An engine that scores given ids by log-prob."""

    async def score(
        self, ids: list[int], *, sampling: Sampling, request_id: str, deadline: float | None
    ) -> PromptScores:
        """Score `ids`; errors, `deadline` and `abort` as of `generate`, but that an abort raises
        InferenceError. Nothing of it stays with the trajectory.
        """


class EngineTimes(Protocol):
    """The facts of an engine for timing and staleness."""

    @property
    def version(self) -> int:
        """The version of the weights that it serves now."""

    @property
    def busy_s(self) -> float:
        """Seconds of decoding so far."""

    @property
    def starved_s(self) -> float:
        """Seconds of decoding so far while a request found no room in its KV cache."""


class RolloutEngine(Inference, EngineTimes, Protocol):
    """The engine interface of a run."""


@dataclass(slots=True, kw_only=True, eq=False)
class GenerationBuilder:
    """Invariant: one log-prob per id, None where no policy wrote it; the spans lie in order, and no two that
    meet are of one version."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """(start, end, version) over `ids`."""
    cached_tokens: int | None = None
    """Cached tokens of the first piece: later pieces reuse its KV."""

    def add(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float | None],
        spans: Iterable[tuple[int, int, int]] = (),
        cached_tokens: int | None = None,
    ) -> None:
        """Append a piece; its spans are over its own ids."""
        start = len(self.ids)
        self.ids += ids
        self.logprobs += logprobs
        for a, b, version in spans:
            begin = start + a
            if self.spans and self.spans[-1][1:] == (begin, version):
                begin = self.spans.pop()[0]
            self.spans.append((begin, start + b, version))
        if self.cached_tokens is None:
            self.cached_tokens = cached_tokens

    def add_generation(self, piece: Generation) -> None:
        """Append the tokens of an engine."""
        self.add(piece.ids, piece.logprobs, piece.version_spans, piece.cached_tokens)

    def result(self, finish: StopReason) -> Generation:
        """All of it as one completion, of which the policy wrote every token."""
        return Generation(
            ids=tuple(self.ids),
            logprobs=tuple(p for p in self.logprobs if p is not None),
            version_spans=tuple(self.spans),
            finish=finish,
            cached_tokens=self.cached_tokens or 0,
        )


class BusyClock:
    """Seconds in which a turn was asked for, and of them those in which one waited for room.

    Both count up to this moment, also within a turn. Invariant: 0 <= starved_s <= busy_s, and neither falls.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._asking = self._starving = 0
        self._busy_s = self._starved_s = 0.0
        self._then = clock()

    @property
    def busy_s(self) -> float:
        self._settle()
        return self._busy_s

    @property
    def starved_s(self) -> float:
        self._settle()
        return self._starved_s

    @contextlib.contextmanager
    def track_turn(self) -> Iterator[None]:
        """One turn, from its request to its answer."""
        self._settle()
        self._asking += 1
        try:
            yield
        finally:
            self._settle()
            self._asking -= 1

    @contextlib.contextmanager
    def track_wait(self) -> Iterator[None]:
        """One turn, inside `track_turn`, while no replica has room for it."""
        self._settle()
        self._starving += 1
        try:
            yield
        finally:
            self._settle()
            self._starving -= 1

    def _settle(self) -> None:
        now = self._clock()
        if self._asking:
            self._busy_s += now - self._then
            self._starved_s += now - self._then if self._starving else 0.0
        self._then = now
