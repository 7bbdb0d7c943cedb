"""One attempt of a foreign agent: its samples, its limits, and the retries of its requests.

    request, digest ──in flight────> joins it
                    ──undelivered──> the same answer again
                    ──else─────────> graph -> engine -> SampledTurn

A session samples as the run does: other wishes of a client (temperature, seed) are counted and have no effect.
Limits end it with closing answers, which nothing records: agents do not keep their own step limits.
"""

import asyncio
import contextvars
import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from rocstar.engine.gateway.dialects.fields import Known
from rocstar.engine.gateway.graph import MessageGraph, TurnPrompt
from rocstar.engine.gateway.messages import FunctionCall, Message, Request, SampledTurn
from rocstar.engine.gateway.recording_engine import RecordingEngine
from rocstar.engine.gateway.stream_parser import StreamParser
from rocstar.engine.gateway.stream_parts import Part, join_texts
from rocstar.engine.inference.base import Generation, InferenceError, StopReason
from rocstar.engine.rollout.rollout import POLICY_TIMEOUT, TRAJECTORY_TIMEOUT, Agent
from rocstar.engine.seeds import stream_of
from rocstar.engine.types import FinishReason, ToolCall, TrajectoryKey
from rocstar.engine.waits import waiting
from rocstar.sandbox.http.errors import RequestError

MAX_CONCURRENT = 16
"""Requests of one session that are sampled at a time."""
MAX_UNDELIVERED = 64
"""Answers that wait for a retry; the oldest are dropped."""
MAX_FIELDS = 128
"""Names of fields that are counted."""
MAX_CLOSING = 16
"""Closing answers of one session; further requests are refused."""
CLOSING_TEXT = "The budget of this session is spent; this is the last answer."
"""Not empty: agents take an empty message for a failure and ask again (openenv/core/harness/capture/server.py)."""
THREAD_CHARS = 1 << 14
"""Longer prompts are rendered and tokenised in a thread."""


class AgentSession:
    """Invariant: a sample is in the graph once, however often its request was sent.

    Attributes:
        graph: the samples.
        failure: of the engine, after which nothing is sampled; None if there is none.
        finish: the limit that ended the latest request; None if none did.
        ignored: how often each field of a request was read and had no effect.
        num_retries: requests that joined another or got its answer again.
        known: by route, the values read from the latest body.
    """

    def __init__(
        self,
        agent: Agent,
        key: TrajectoryKey,
        *,
        max_context: int | None = None,
        deadline: Callable[[], float | None] = lambda: None,
    ) -> None:
        """
        Args:
            agent: its engine, chat format, limits and sampling. Tool results of the harness count as response.
            key: of the trajectory. The noise is a function of it and of the prompts.
            max_context: tokens of a prompt and its answer; None if the engine does not report it.
            deadline: returns when the attempt must end, on the running loop's clock.
        """
        self.agent, self.key, self.max_context, self._deadline = agent, key, max_context, deadline
        self.graph = MessageGraph(agent.chat)
        self.failure: InferenceError | None = None
        self.finish: FinishReason | None = None
        self.ignored: Counter[str] = Counter()
        self.num_retries = 0
        self.known: dict[str, Known] = {}
        self._answers: dict[bytes, asyncio.Task[SampledTurn]] = {}
        """By the digest of their request: those that are being sampled or were not delivered."""
        self._running: set[asyncio.Task[SampledTurn]] = set()
        self._num_closing = 0
        self._id = hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest()
        self._rows: list[int | None] = []
        """The engine's requests by number: the latest node of each."""
        self._busy: set[int] = set()
        """Those that run."""
        self._streams: list[int] = []
        """The noise stream of each node."""
        self._samples: Counter[bytes] = Counter()
        """Samples that began, by the digest of their prompt."""
        self._context = contextvars.copy_context()
        """With the wait board of the run, which the tasks of a server do not have."""
        self._first: bytes | None = None
        """The digest of the first prompt."""

    async def sample(self, request: Request, digest: bytes) -> SampledTurn:
        """Sample an answer, or return that of the same request if it was not delivered.

        digest: of the route and the body.

        Raises:
            RequestError: 400 for a prompt that cannot be shown or is too long; 403 behind the limits; 429 for too
                many requests; 503 after a failure of the engine; 504 behind the deadline.
        """
        answer = self._answers.get(digest)
        if answer is not None:
            self.num_retries += 1
        else:
            if len(self._running) >= MAX_CONCURRENT:
                message = f"{len(self._running)} requests of this session are being sampled; ask again later"
                raise RequestError(message, status=429, kind="queue_full")
            answer = self._answers[digest] = asyncio.create_task(self._sample(request), context=self._context)
            self._running.add(answer)
            answer.add_done_callback(lambda task: self._settle(digest, task))
            if len(self._answers) > MAX_UNDELIVERED:
                idle = [key for key, task in self._answers.items() if task.done()]
                for key in idle[: max(0, len(idle) - MAX_UNDELIVERED)]:
                    del self._answers[key]
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if answer.cancelled():  # by `close`
                self._check_open()
            raise

    def delivered(self, digest: bytes) -> None:
        """The last byte of the answer was sent: the same request again asks for another sample."""
        self._answers.pop(digest, None)

    async def close(self) -> None:
        """Stop all samples and release the engine's requests."""
        self.failure = self.failure or InferenceError("closed", "the session is closed", retryable=False)
        for task in (running := list(self._running)):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for number in range(len(self._rows)):
            self.agent.inference.release(self._row_name(number))
        self._rows.clear()

    def _settle(self, digest: bytes, task: asyncio.Task[SampledTurn]) -> None:
        self._running.discard(task)
        if (task.cancelled() or task.exception() is not None) and self._answers.get(digest) is task:
            del self._answers[digest]

    # ---- one sample ----

    async def _sample(self, request: Request) -> SampledTurn:
        self._check_open()
        known = self.ignored
        known.update(name for name in request.ignored if name in known or len(known) < MAX_FIELDS)
        chat, sampling = self.agent.chat, self.agent.sampling
        if request.temperature not in (None, sampling.temperature):
            self.ignored["temperature"] += 1
        if request.prompt_text is not None:
            plain = request.prompt_text.encode("utf-8", "replace").decode("utf-8")
            request = replace(request, prompt_ids=tuple(chat.tokenizer.encode(plain, add_special_tokens=False)))
        prompt = await self._prompt(request)
        max_new_tokens = self._room(prompt)
        if max_new_tokens < 1:
            return self._closing(request, prompt)
        asked = request.max_tokens
        parts: list[Part] = []
        number = self._take_row(prompt.parent)
        recorder = RecordingEngine(
            self.agent.inference,
            chat,
            parts.append,
            name=self._row_name(number),
            parser=None if request.prompt_ids is not None else StreamParser(chat.form if request.functions else None),
            functions=request.functions,
            stops=request.stops,
        )
        recorder.listen()
        stream = self._stream(prompt)
        try:
            async with waiting(recorder.name, "the policy", kind="generate", deadline=None):
                generation = await recorder.generate(
                    prompt.ids,
                    request_id=recorder.name,
                    max_new_tokens=max_new_tokens if asked is None else min(asked, max_new_tokens),
                    stop_ids=chat.stop_ids.union(request.stop_ids),
                    sampling=sampling,
                    seed=stream,
                    deadline=self._deadline(),
                )
            if generation.finish is StopReason.aborted:
                raise InferenceError("aborted", "the turn was aborted", retryable=True)
        except InferenceError as error:
            if error.kind not in ("too_long", "bad_token"):
                self.failure = error
            raise conversation_error(error.kind, error.detail, retryable=True) from None
        except TimeoutError:
            raise conversation_error("deadline", "the time of the session is over", retryable=False) from None
        finally:
            self._busy.discard(number)
        is_cut = generation.finish is StopReason.length and not recorder.stopped_by
        is_limit = is_cut and len(generation.ids) >= max_new_tokens
        self.finish = FinishReason.max_tokens if is_limit else None
        message = self._message(parts, recorder.calls)
        self._rows[number] = self.graph.add(prompt, generation, message, text=recorder.text, calls=recorder.made)
        self._streams.append(stream)
        finish = "length" if is_cut else "tool_calls" if message.calls else "stop"
        return self._turn(request, message, finish, prompt, generation, recorder.stopped_by)

    async def _prompt(self, request: Request) -> TurnPrompt:
        chars = self.graph.num_new_chars(request)
        if chars + (0 if self.graph.nodes else 1000 * len(request.functions)) < THREAD_CHARS:
            return self.graph.prompt(request)
        return await asyncio.to_thread(self.graph.prompt, request)

    def _check_open(self) -> None:
        if self.failure is not None:
            raise conversation_error(self.failure.kind, self.failure.detail, retryable=True)

    def _room(self, prompt: TurnPrompt) -> int:
        """Return the most tokens of the sample; below 1 if a limit is reached. Raises RequestError for a prompt
        that fills the context: an agent may shorten its history."""
        limits, nodes, size = self.agent.limits, self.graph.nodes, len(prompt.ids)
        context = size + limits.max_response_tokens if self.max_context is None else self.max_context
        if size >= context:
            self.finish = FinishReason.max_tokens
            raise RequestError(
                f"the prompt has {size} tokens and the model takes {context} with its answer; send fewer or "
                "shorter messages",
                field="messages",
                kind="context_length_exceeded",
            )
        begin = size if prompt.parent is None else len(nodes[self.graph.path(prompt.parent)[0]].context)
        sampled = sum(len(node.generation.ids) for node in nodes)
        response = min(begin - size, -sampled) + limits.max_response_tokens
        if len(nodes) + len(self._busy) >= limits.max_turns:
            self.finish = FinishReason.max_turns
            return 0
        if response < 1:
            self.finish = FinishReason.max_tokens
        return min(response, context - size)

    def _closing(self, request: Request, prompt: TurnPrompt) -> SampledTurn:
        self._num_closing += 1
        if self._num_closing > MAX_CLOSING:
            message = f"the limits of the session are reached ({self.finish}); end the agent"
            raise RequestError(message, status=403, kind="limit_reached")
        none = Generation(ids=(), logprobs=(), version_spans=(), finish=StopReason.stop, cached_tokens=0)
        return self._turn(request, Message(role="assistant", text=CLOSING_TEXT), "stop", prompt, none)

    def _message(self, parts: list[Part], made: Sequence[ToolCall]) -> Message:
        texts = join_texts(parts, 0)
        calls = tuple(
            FunctionCall(
                id=f"call_{self._id}_{len(self.graph.nodes)}_{k}",
                name=call.name or "",
                arguments=json.dumps(dict(call.arguments or {})),
            )
            for k, call in enumerate(made)
        )
        return Message(role="assistant", text=texts["content"], reasoning=texts["reasoning_content"], calls=calls)

    def _turn(
        self,
        request: Request,
        message: Message,
        finish: str,
        prompt: TurnPrompt,
        generation: Generation,
        stopped_by: str = "",
    ) -> SampledTurn:
        return SampledTurn(
            id=f"{self._id}-{len(self.graph.nodes)}-{self._num_closing}",
            request=request,
            message=message,
            finish=finish,  # type: ignore[arg-type]
            stopped_by=stopped_by,
            prompt_ids=tuple(prompt.ids),
            generation=generation,
            created=int(time.time()),
        )

    # ---- the engine's requests, and the noise ----

    def _row_name(self, number: int) -> str:
        return f"{self.key}~{number}" if number else str(self.key)

    def _take_row(self, parent: int | None) -> int:
        """The number of an engine's request that does not run: the parent's, which has its KV, if it is idle."""
        idle = [number for number in range(len(self._rows)) if number not in self._busy]
        number = next((k for k in idle if parent is not None and self._rows[k] == parent), None)
        if number is None:
            number = idle[0] if idle else len(self._rows)
        if number == len(self._rows):
            self._rows.append(None)
        self._busy.add(number)
        return number

    def _stream(self, prompt: TurnPrompt) -> int:
        """The noise of a sample: of the first root the trajectory's, of a child its parent's; of other roots and
        of repeated prompts a function of the prompt and its repetition, whatever the order of arrival."""
        self._first = self._first or prompt.digest
        repetition = self._samples[prompt.digest]
        self._samples[prompt.digest] += 1
        if repetition or (prompt.parent is None and prompt.digest != self._first):
            return stream_of(self.key, purpose=f"{prompt.digest.hex()} {repetition}")
        return stream_of(self.key) if prompt.parent is None else self._streams[prompt.parent]


class Sessions:
    """The open sessions of a gateway by their secret keys."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, AgentSession] = {}

    def __len__(self) -> int:
        return len(self._by_digest)

    def open(self, session: AgentSession, secret: str = "") -> str:
        """Add a session. Return its secret key, a new one if none is given."""
        secret = secret or f"rocstar-{secrets.token_hex(24)}"
        self._by_digest[_digest(secret)] = session
        return secret

    def find(self, secret: str) -> AgentSession:
        """Return the session of a key. Raises RequestError for an unknown one."""
        session = self._by_digest.get(_digest(secret))
        if session is None:
            message = "the request has no key of an open session; send it as `Authorization: Bearer KEY`"
            raise RequestError(message, status=401, kind="unauthorized")
        return session

    async def close(self, secret: str) -> AgentSession | None:
        """Close the session of a key and forget it. Return it, or None if there is none."""
        session = self._by_digest.pop(_digest(secret), None)
        if session is not None:
            await session.close()
        return session


def _digest(secret: str) -> bytes:
    """The place of a key, so that a look-up takes no longer the more of a guess is right."""
    return hashlib.blake2b(secret.encode("utf-8", "replace"), digest_size=16).digest()


def conversation_error(kind: str, detail: str, *, retryable: bool) -> RequestError:
    """Return the error for a conversation that failed outside the policy."""
    if kind == "too_long":
        return RequestError(
            f"the conversation is too long for the engine: {detail}; send fewer messages or lower max_tokens",
            field="messages",
            kind="context_length_exceeded",
        )
    if kind == "bad_token":
        return RequestError(f"the model does not know an id: {detail}", field="prompt", kind=kind)
    if kind in ("deadline", TRAJECTORY_TIMEOUT, POLICY_TIMEOUT):
        return RequestError(f"the conversation exceeded its time limit: {detail}", status=504, kind="deadline")
    if kind == "queue_timeout":
        return RequestError(f"no engine slot was free in time: {detail}", status=503, kind=kind)
    return RequestError(f"{kind}: {detail}", status=503 if retryable else 500, kind=kind)
