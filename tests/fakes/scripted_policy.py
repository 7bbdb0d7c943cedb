"""Stand-ins for tests: a policy that follows a script, a clock that jumps, a tokenizer from nothing.

    policy = ScriptedPolicy({("task", 0, 1): "<tool_call>...", ("task", 0, 2): "4"}, tokenizer)
    policy = ScriptedPolicy(lambda request: Reply(text="4", delay_s=3600.0), tokenizer)
    run_virtual(main())  # an hour of sleeping takes no time

ScriptedPolicy and EmbeddedEngine pass the same protocol tests (tests/engine/inference/test_protocol.py).
"""

import asyncio
import functools
import itertools
import math
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from rocstar.engine.inference.base import Generation, Heard, InferenceError, KvLoad, PromptScores, Sampling, StopReason
from rocstar.engine.types import Failed, Origin, Trajectory

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Where others would wait for `timeout` seconds, it moves the clock by as much and returns."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:  # only a thread or a child process can go on
            return super().select(None)
        self.now += max(0.0, timeout)
        return []


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as every task is blocked.

    Work in threads takes no time on this clock: a timer may fire before it ends.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def stand_still(self, seconds: float) -> None:
        """The callback that runs now takes so long, and nothing else runs meanwhile."""
        self._jumping.now += seconds


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run on a VirtualClockLoop."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)


def on_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Return a test that runs the coroutine function on a VirtualClockLoop."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(test(*args, **kwargs))

    return run


CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


class ByteTokenizer:
    """Byte-level BPE with the interface of `chat.Tokenizer`. Without `corpus`, one token per byte.

    `special` are control tokens; only the first of them has a role (eos), as in tokenizers whose
    `all_special_tokens` is short. `markup` are added tokens that are plain text.
    """

    def __init__(
        self,
        *,
        special: Sequence[str] = CHATML_TOKENS,
        markup: Sequence[str] = (),
        corpus: Iterable[str] = (),
        vocab_size: int = 320,
    ) -> None:
        self._tokenizer = Tokenizer(models.BPE())
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        self._tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
        self._tokenizer.train_from_iterator(corpus, trainer)
        self._tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
        self._tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in markup])
        self.all_special_tokens = list(special[:1])
        self.eos_token = special[0] if special else None
        self.bos_token: str | None = None
        self.added_tokens_decoder = self._tokenizer.get_added_tokens_decoder()

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def get_vocab(self) -> dict[str, int]:
        """Every token with its id."""
        return self._tokenizer.get_vocab()

    def id_of(self, token: str) -> int:
        """The id of a special or markup token."""
        found = self._tokenizer.token_to_id(token)
        assert found is not None, f"{token!r} is no token"
        return found

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of a `generate` call, with its attempt and turn (from 1)."""

    ids: tuple[int, ...]
    max_new_tokens: int
    stop_ids: frozenset[int]
    sampling: Sampling
    seed: int
    request_id: str
    deadline: float | None
    turn: int

    @property
    def task_id(self) -> str:
        """The task of a request id "s{step}/{task}/{sibling}"."""
        return self.request_id.partition("/")[2].rpartition("/")[0]

    @property
    def sibling(self) -> int:
        return int(self.request_id.rpartition("/")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One scripted turn: `text`, or `ids` as they are; the stop token is added if `stops`, else the reply
    goes round and round until a limit cuts it. `error` is raised after `delay_s` instead."""

    text: str = ""
    ids: tuple[int, ...] | None = None
    stops: bool = True
    delay_s: float = 0.0
    error: Exception | None = None


Script = Mapping[tuple[str, int, int], str | Reply] | Callable[[Request], str | Reply]


@dataclass(slots=True, kw_only=True)
class _Answering:
    """A request being answered."""

    request: Request
    aborted: bool = False
    waits: asyncio.Future[None] | None = None
    """While it waits for a token's time."""
    running: bool = False
    ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cached_tokens: int = 0

    def wake(self) -> None:
        """It waits no longer."""
        if self.waits is not None and not self.waits.done():
            self.waits.set_result(None)

    def result(self, finish: StopReason) -> Generation:
        spans, at = [], 0
        for version, group in itertools.groupby(self.versions):
            end = at + len(list(group))
            spans.append((at, end, version))
            at = end
        return Generation(
            ids=tuple(self.ids),
            logprobs=tuple(logprob_of(token) for token in self.ids),
            version_spans=tuple(spans),
            finish=finish,
            cached_tokens=self.cached_tokens,
        )


def logprob_of(token: int) -> float:
    """The log-prob that ScriptedPolicy reports for a token."""
    return -(1 + token % 7) / 8


class ScriptedPolicy:
    """The inference protocol without a model. `requests` and `released` record the calls in order.

    token_s: seconds per token; 0.0 is one turn of the event loop, None is the whole reply at once.
    max_running: trajectories that hold a slot, from their first request to their release; others wait.
    """

    def __init__(
        self,
        script: Script,
        tokenizer: ByteTokenizer | None = None,
        *,
        token_s: float | None = None,
        max_running: int = 1 << 30,
        max_length: int = 1 << 20,
        vocab_size: int = 1 << 20,
    ) -> None:
        self._script, self._tokenizer, self._token_s = script, tokenizer, token_s
        self._max_running, self._max_length, self._vocab_size = max_running, max_length, vocab_size
        self.version = 0
        self.requests: list[Request] = []
        self.released: list[str] = []
        self._turns: dict[str, int] = {}
        self._cached: dict[str, tuple[int, list[int]]] = {}
        """The policy version that a trajectory's KV belongs to, and its ids."""
        self._live: dict[str, _Answering] = {}
        self._owners: set[str] = set()
        self._granting: dict[str, Callable[[], None]] = {}
        self._hearing: dict[str, Heard] = {}
        self._queue: deque[asyncio.Future[None]] = deque()

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
        self._check(ids, max_new_tokens, seed, request_id)
        turn = self._turns[request_id] = self._turns.get(request_id, 0) + 1
        request = Request(
            ids=tuple(ids),
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            sampling=sampling,
            seed=seed,
            request_id=request_id,
            deadline=deadline,
            turn=turn,
        )
        self.requests.append(request)
        live = self._live[request_id] = _Answering(request=request)
        try:
            async with asyncio.timeout_at(deadline):
                return live.result(await self._answer(live))
        finally:
            del self._live[request_id]
            if live.running and request_id in self._owners:
                self._cached[request_id] = (self.version, [*ids, *live.ids])

    def _check(self, ids: list[int], max_new_tokens: int, seed: int, request_id: str) -> None:
        kind = None
        if not ids or max_new_tokens < 1 or request_id in self._live or not 0 <= seed < 1 << 64:
            kind = "bad_request"
        elif len(ids) + max_new_tokens > self._max_length:
            kind = "too_long"
        elif min(ids) < 0 or max(ids) >= self._vocab_size:
            kind = "bad_token"
        if kind is not None:
            raise InferenceError(kind, f"{len(ids)} ids, {max_new_tokens} new tokens", retryable=False)

    async def _answer(self, live: _Answering) -> StopReason:
        request = live.request
        await asyncio.sleep(0)
        if not await self._take_slot(live):
            return StopReason.aborted
        live.running = True
        version, known = self._cached.get(request.request_id, (self.version, []))
        if known and version == self.version and tuple(known[: len(request.ids)]) == request.ids[: len(known)]:
            live.cached_tokens = min(len(known), len(request.ids)) - 1
        reply = self._reply(request)
        if reply.delay_s and await self._wait(live, reply.delay_s):
            return StopReason.aborted
        if reply.error is not None:
            raise reply.error
        for token in self._tokens(reply, request):
            if live.aborted or (self._token_s is not None and await self._wait(live, self._token_s)):
                return StopReason.aborted
            live.ids.append(token)
            live.versions.append(self.version)
            if (heard := self._hearing.get(request.request_id)) is not None:
                heard(len(live.ids) - 1, token, logprob_of(token))
        return StopReason.stop if live.ids[-1] in request.stop_ids else StopReason.length

    async def _take_slot(self, live: _Answering) -> bool:
        """Wait until the trajectory holds a slot; False if it is aborted first."""
        row = live.request.request_id
        while row not in self._owners and len(self._owners) >= self._max_running and not live.aborted:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                await turn
            finally:
                if turn in self._queue:
                    self._queue.remove(turn)
        if live.aborted:
            return False
        self._owners.add(row)
        if (granted := self._granting.pop(row, None)) is not None:
            granted()
        return True

    def _wake_queue(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)

    async def _wait(self, live: _Answering, seconds: float) -> bool:
        """Wait; True as soon as the request is aborted."""
        if seconds == 0:
            await asyncio.sleep(0)
            return live.aborted
        loop = asyncio.get_running_loop()
        live.waits = loop.create_future()
        timer = loop.call_later(seconds, live.wake)
        try:
            if not live.aborted:
                await live.waits
        finally:
            timer.cancel()
            live.waits = None
        return live.aborted

    def _reply(self, request: Request) -> Reply:
        if callable(self._script):
            reply = self._script(request)
        else:
            reply = self._script[request.task_id, request.sibling, request.turn]
        return Reply(text=reply) if isinstance(reply, str) else reply

    def _tokens(self, reply: Reply, request: Request) -> list[int]:
        """The reply's ids up to its first stop token, or to the limit."""
        ids: Iterable[int] = reply.ids if reply.ids is not None else self._encode(reply.text)
        ids = itertools.chain(ids, sorted(request.stop_ids)[:1]) if reply.stops else itertools.cycle(ids)
        out: list[int] = []
        for token in itertools.islice(ids, request.max_new_tokens):
            out.append(token)
            if token in request.stop_ids:
                break
        assert out, f"the script has nothing to say for {request}"
        return out

    def _encode(self, text: str) -> list[int]:
        assert self._tokenizer is not None, "a script of texts needs a tokenizer"
        return self._tokenizer.encode(text)

    def load(self) -> KvLoad:
        known = {row: len(ids) for row, (_, ids) in self._cached.items()}
        known |= {row: len(x.request.ids) + len(x.ids) for row, x in self._live.items() if x.running}
        running = sum(live.running for live in self._live.values())
        return KvLoad(
            total=min(self._max_running, 1 << 20) * self._max_length,
            used=sum(known.values()),
            running=running,
            waiting=len(self._live) - running,
        )

    async def publish(self, version: int, source: object = None) -> None:
        if version <= self.version:
            raise ValueError(f"version {version} does not follow {self.version}")
        await asyncio.sleep(0)
        self.version = version

    async def score(
        self, ids: list[int], *, sampling: Sampling, request_id: str, deadline: float | None
    ) -> PromptScores:
        """Every id is the likeliest, but for those that are multiples of three: there it is 1."""
        self._check(ids, 1, 0, request_id)
        await asyncio.sleep(0)
        best = [1 if token % 3 == 0 else token for token in ids[1:]]
        return PromptScores(
            logprobs=tuple(logprob_of(token) for token in ids[1:]),
            best_ids=tuple(best),
            best_logprobs=tuple(max(logprob_of(a), logprob_of(b)) for a, b in zip(ids[1:], best, strict=True)),
        )

    async def abort(self, request_id: str) -> None:
        self._abort(request_id)

    def join(self, request_ids: Sequence[str]) -> None:
        """Nothing to wait for: every request is answered alone."""

    def on_grant(self, request_id: str, granted: Callable[[], None]) -> None:
        self._granting[request_id] = granted

    def on_tokens(self, request_id: str, heard: Heard) -> None:
        self._hearing[request_id] = heard

    def release(self, request_id: str) -> None:
        self._granting.pop(request_id, None)
        self._hearing.pop(request_id, None)
        self.released.append(request_id)
        self._abort(request_id)
        self._turns.pop(request_id, None)
        self._cached.pop(request_id, None)
        self._owners.discard(request_id)
        self._wake_queue()

    def _abort(self, request_id: str) -> None:
        if live := self._live.get(request_id):
            live.aborted = True
            live.wake()
            self._wake_queue()


def check_trajectory(trajectory: Trajectory) -> None:
    """Assert the invariants of types.Trajectory and of the loop."""
    t = trajectory
    assert t.segments[0].origin is Origin.prompt
    assert t.segments[-1].origin is not Origin.tool or isinstance(t.outcome, Failed)
    assert [0, *(s.end for s in t.segments)] == [*(s.start for s in t.segments), len(t.ids)]
    origins = [s.origin for s in t.segments for _ in range(s.start, s.end)]
    assert len(t.logprobs) == len(t.ids) == len(origins)
    for origin, logprob in zip(origins, t.logprobs, strict=True):
        assert (origin is Origin.policy) == (not math.isnan(logprob))
    spanned = [k for span in t.version_spans for k in range(span.start, span.end)]
    assert spanned == [k for k, origin in enumerate(origins) if origin is Origin.policy]
    own = 0 if t.fork is None else t.fork.start
    assert t.loss_mask().tolist() == [origin is Origin.policy and k >= own for k, origin in enumerate(origins)]
    assert t.num_policy_tokens == sum(k >= own for k in spanned)
    assert (t.prompt_length, t.response_length) == (t.segments[0].end, len(t.ids) - t.segments[0].end)
    written = [(s.start, s.end) for s in t.segments if s.origin is Origin.policy]
    assert written == [(turn.start, turn.end) for turn in t.turns]
    spoken = {s.start for s in t.segments[1:] if s.origin is Origin.prompt}
    for turn in t.turns[:-1]:
        assert turn.stopped
        assert turn.end in spoken or (turn.calls and len(turn.results) == len(turn.calls))
    assert all(len(turn.results) in {0, len(turn.calls)} for turn in t.turns)
    assert t.results == tuple(result for turn in t.turns for result in turn.results)
