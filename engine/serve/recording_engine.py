"""An engine and tools that record a conversation for its client.

    run_trajectory -> RecordingEngine.generate -> engine    tokens ──> parts
                   -> RecordingTools.execute   -> sandbox   calls and results ──> parts

Serving therefore runs the same turn loop as training. Recording adds no waiting. `stop` ends the current
generation or tool call immediately, including the sandbox's child; the record keeps the text so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.inference.base import (
    Generation,
    Inference,
    InferenceError,
    KvLoad,
    PromptScores,
    ScoresPrompts,
    StopReason,
    TellsTokens,
)
from rocstar.engine.inference.weights import WeightSource
from rocstar.engine.serve.stream_parser import StopSequences, StreamParser, TurnText
from rocstar.engine.serve.stream_parts import Part, TextPart, ToolCallPart, ToolResultPart
from rocstar.engine.tools.box import ToolBox, Tools
from rocstar.engine.tools.results import cut_middle
from rocstar.engine.tools.tool import ToolFailure
from rocstar.engine.types import Task, ToolCall, ToolResult

Emit = Callable[[Part], None]
STOPPED = "aborted"
"""The kind of failure of a conversation that its client ended."""


ServedModel = Literal["agent", "raw", "completion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationOrder:
    """A validated request of a client.

    Attributes:
        id: the id of the conversation and of its records; "" until it begins.
        served_model: the agent with its tools, the model with the client's, or the model alone.
        task: the question, as the records store it.
        prompt_ids: the token ids of the prompt.
        seed: the seed of the noise; choice k is sibling k.
        max_tokens: the limit over all turns, including tool results.
        stops: the stop sequences.
        functions: the client's tools; None for the agent's own.
        is_judged: the task has an answer, so the reward is known at the end.
        is_streamed: the client reads parts as they are produced.
        scores_prompt: return the log-probs of the prompt, computed once by the first choice.
    """

    id: str = ""
    served_model: ServedModel
    task: Task
    prompt_ids: list[int]
    seed: int
    num_choices: int
    temperature: float
    max_tokens: int
    stops: tuple[str, ...]
    functions: Sequence[Mapping[str, Any]] | None
    is_judged: bool
    is_streamed: bool
    scores_prompt: bool = False


class RecordingEngine:
    """Implements `Inference` for one choice of a conversation: records its turns and stops it for its client.

    Invariant: the parts of a turn depend only on its tokens, not on their timing; after a stop sequence
        nothing is emitted or recorded; the parts of a turn are those of its record.
    """

    def __init__(self, engine: Inference, order: ConversationOrder, choice: int, chat: ChatFormat, emit: Emit) -> None:
        """emit: receives each part."""
        self._engine, self.choice, self.chat, self.emit = engine, choice, chat, emit
        self.name = f"{order.id}/{choice}"
        """The unique id of the request in the engine."""
        self.is_stopped = False
        self.is_truncated = False
        """A stop text ended it."""
        self.cached_tokens: int | None = None
        """The cached tokens of the first prompt."""
        self.scores: PromptScores | None = None
        """The log-probs of the first prompt, if requested."""
        self.turns = 0
        self._scores_prompt = order.scores_prompt and choice == 0
        self._stops = order.stops
        self._parser: StreamParser | None = None
        """None for a completion, whose text has no special parts."""
        if order.served_model != "completion":
            reads_calls = order.served_model == "agent" or order.functions
            self._parser = StreamParser(chat.form if reads_calls else None)
        self._records_tokens = bool(order.stops) or order.is_streamed
        """Tokens are parsed as they are generated."""
        self._clear_turn()
        self.tool_wait: asyncio.Timeout | None = None
        """The timeout of the running calls; `stop` makes it expire."""
        self._aborts: set[asyncio.Task[None]] = set()

    # ---- the policy ----

    async def generate(self, ids: list[int], *, request_id: str, **options: Any) -> Generation:
        self.check()
        self.turns += 1
        self._clear_turn()
        if self._parser is not None:
            self._parser.begin_turn(self.chat.boundaries.opening)
        if self._scores_prompt and self.turns == 1 and isinstance(self._engine, ScoresPrompts):
            self.scores = await self._engine.score(
                ids, sampling=options["sampling"], request_id=self.name, deadline=options["deadline"]
            )
        return self._end_turn(await self._engine.generate(ids, request_id=self.name, **options))

    def load(self) -> KvLoad:
        return self._engine.load()

    async def publish(self, version: int, source: WeightSource | None = None) -> None:
        await self._engine.publish(version, source)

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(self.name)

    def join(self, request_ids: Sequence[str]) -> None:
        """Do nothing: served requests do not wait for a batch."""

    def on_grant(self, request_id: str, granted: Callable[[], None]) -> None:
        self._engine.on_grant(self.name, granted)
        # `release` follows from here on.
        if self._records_tokens and isinstance(self._engine, TellsTokens):
            self._engine.on_tokens(self.name, self._receive)

    def release(self, request_id: str) -> None:
        self._engine.release(self.name)

    def _clear_turn(self) -> None:
        self._received: list[int] = []
        """Tokens of the present turn so far."""
        self._read = 0
        """The number of parsed tokens."""
        self._truncate_at: int | None = None
        self._text = TurnText(self.chat.decode, self.chat.text.of_token)
        self._stop_filter = StopSequences(self._stops)

    def check(self) -> None:
        """InferenceError if the client has gone."""
        if self.is_stopped:
            raise InferenceError(STOPPED, "its client ended it", retryable=True)

    def _receive(self, place: int, token: int) -> None:
        """Receive a token of the current turn; a token received before is ignored."""
        if place != len(self._received) or self._truncate_at is not None:
            return
        self._received.append(token)
        if place == self._read:  # tokens of one loop iteration are parsed together
            asyncio.get_running_loop().call_soon(self._read_new)

    def _read_new(self) -> None:
        """Parse the received tokens that are not parsed yet."""
        begin, new = self._read, self._received[self._read :]
        self._read = len(self._received)
        ends = self.chat.stop_ids
        if not self._stops:
            self._emit_text("".join([self._text.add(token) for token in new if token not in ends]))
            return
        for place, token in enumerate(new, begin):
            self._emit_text(self._stop_filter.add("" if token in ends else self._text.add(token)))
            if self._stop_filter.is_truncated:
                self._truncate_at = place + 1
                self._abort()
                return

    def _end_turn(self, generation: Generation) -> Generation:
        """Emit the rest of the turn. Return the turn for the record."""
        if not self._records_tokens and self.chat.text.is_joined:  # the text does not depend on the chunks
            self._emit_text(self.chat.turn_text(generation.ids))
        else:
            streamed = self._received[: self._truncate_at]
            if not self.is_stopped and list(generation.ids[: len(streamed)]) != streamed:
                raise InferenceError(
                    "told_otherwise",
                    "the engine restarted and generated other tokens than it had streamed",
                    retryable=True,
                )
            for place in range(len(self._received), len(generation.ids)):
                self._receive(place, generation.ids[place])
            self._read_new()
        if self._truncate_at is None:
            self._emit_text(self._stop_filter.add(self._text.rest()))
        if self._stop_filter.is_truncated and self._truncate_at is None:
            self._truncate_at = len(self._received)
        self._emit_text(self._stop_filter.rest())
        if self._parser is not None:
            for kind, text in self._parser.end_turn():
                self.emit(TextPart(self.choice, kind, text))
        if self.cached_tokens is None:
            self.cached_tokens = generation.cached_tokens
        if self._truncate_at is None or self.is_stopped:
            return generation
        self.is_truncated = True
        end = self._truncate_at
        return replace(
            generation,
            ids=generation.ids[:end],
            logprobs=generation.logprobs[:end],
            version_spans=tuple((a, min(b, end), v) for a, b, v in generation.version_spans if a < end),
            finish=StopReason.length,
        )

    def _emit_text(self, text: str) -> None:
        if self._parser is not None:
            for kind, part in self._parser.add(text) if text else ():
                self.emit(TextPart(self.choice, kind, part))
        elif text:
            self.emit(TextPart(self.choice, "content", text))

    # ---- its tools ----

    def call_id(self, index: int) -> str:
        """Return the id of a call of the current turn, unique over all responses."""
        return f"call_{self.name.replace('/', '_')}_{self.turns}_{index}"

    def call_begins(self, calls: Sequence[ToolCall]) -> None:
        """The calls of the present turn are about to be made."""
        for index, call in enumerate(calls):
            arguments = None if call.arguments is None else dict(call.arguments)
            self.emit(ToolCallPart(choice=self.choice, id=self.call_id(index), name=call.name, arguments=arguments))

    # ---- its client ----

    def stop(self) -> None:
        """Stop the choice: the loop returns a failed trajectory with the tokens so far."""
        if self.is_stopped:
            return
        self.is_stopped = True
        if self.tool_wait is not None:
            self.tool_wait.reschedule(asyncio.get_running_loop().time())
        self._abort()

    def _abort(self) -> None:
        if self.turns:
            task = asyncio.ensure_future(self._engine.abort(self.name))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)


class RecordingTools:
    """A tool box of which a client sees every call. Implements `ToolBox` and, when open, `Tools`."""

    def __init__(self, box: ToolBox, recorder: RecordingEngine, *, max_tokens: int) -> None:
        """max_tokens: of a result, as the policy reads it."""
        self._box, self._recorder, self._max_tokens = box, recorder, max_tokens
        self._tools: Tools | None = None

    @asynccontextmanager
    async def open(self, *, seed: int) -> AsyncIterator[Tools]:
        async with self._box.open(seed=seed) as self._tools:
            yield self

    async def execute(self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None) -> tuple[ToolResult, ...]:
        assert self._tools is not None, "the tools are not open"
        recorder = self._recorder
        recorder.call_begins(calls)
        recorder.check()
        try:
            async with asyncio.timeout(None) as recorder.tool_wait:
                results = await self._tools.execute(calls, turn=turn, deadline=deadline)
        except TimeoutError:
            if recorder.is_stopped:
                raise ToolFailure("its client ended it while a tool ran") from None
            raise
        finally:
            recorder.tool_wait = None
        for index, (call, result) in enumerate(zip(calls, results, strict=True)):
            recorder.emit(
                ToolResultPart(
                    choice=recorder.choice,
                    id=recorder.call_id(index),
                    name=call.name,
                    status=result.status,
                    is_error=result.is_error,
                    text=cut_middle(result.text, recorder.chat.tokenizer, self._max_tokens),
                )
            )
        return results
