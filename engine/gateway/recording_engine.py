"""An engine that records a conversation for its client.

    run_trajectory, Session -> RecordingEngine.generate -> engine    tokens ──> parts

Serving therefore runs the same turn loop as training. Recording adds no waiting. `stop` ends the current
generation or tool call immediately, including the sandbox's child; the record keeps the text so far.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.gateway.stream_parser import StopSequences, StreamParser, TurnText
from rocstar.engine.gateway.stream_parts import Part, TextPart, ToolCallPart
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
from rocstar.engine.types import ToolCall

Emit = Callable[[Part], None]
STOPPED = "aborted"
"""The kind of failure of a conversation that its client ended."""


class RecordingEngine:
    """Implements `Inference` for one choice of a conversation: records its turns and stops it for its client.

    Invariant: the parts of a turn depend only on its tokens, not on their timing; after a stop sequence
        nothing is emitted or recorded; the parts of a turn are those of its record.
    """

    def __init__(
        self,
        engine: Inference,
        chat: ChatFormat,
        emit: Emit,
        *,
        name: str,
        choice: int = 0,
        parser: StreamParser | None,
        functions: Sequence[Mapping[str, Any]] = (),
        stops: Sequence[str] = (),
        is_streamed: bool = False,
        scores_prompt: bool = False,
    ) -> None:
        """
        Args:
            emit: receives each part.
            name: the unique id of the request in the engine.
            choice: the number of the choice, in its parts.
            parser: None for a completion, whose text has no special parts.
            functions: of the client, which makes the calls itself.
            stops: the stop sequences.
            is_streamed: emit the parts as they are generated.
            scores_prompt: return the log-probs of the prompt.
        """
        self._engine, self.choice, self.chat, self.emit, self.name = engine, choice, chat, emit, name
        self.is_stopped = False
        self.stopped_by = ""
        """The stop sequence that ended it."""
        self.cached_tokens: int | None = None
        """The cached tokens of the first prompt."""
        self.scores: PromptScores | None = None
        """The log-probs of the first prompt, if requested."""
        self.turns = 0
        self._num_prompt = 0
        self.written_ids: list[int] = []
        """The ids after the first prompt so far, as the record has them."""
        self.written_logprobs: list[float | None] = []
        """The log-prob of each: None for a token of a tool result, NaN for one that the engine reports at the end of
        the turn."""
        self._scores_prompt, self._parser, self._stops = scores_prompt, parser, tuple(stops)
        self._functions = functions
        self.text = ""
        """The text of the latest turn."""
        self.made: tuple[ToolCall, ...] = ()
        """The calls in it of functions of the client."""
        self._records_tokens = bool(stops) or is_streamed
        """Tokens are parsed as they are generated."""
        self._truncate_at: int | None = None
        """The number of tokens of the turn that a stop text leaves."""
        self._clear_turn()
        self.tool_wait: asyncio.Timeout | None = None
        """The timeout of the running calls; `stop` makes it expire."""
        self._aborts: set[asyncio.Task[None]] = set()

    # ---- the policy ----

    async def generate(self, ids: list[int], *, request_id: str, **options: Any) -> Generation:
        self.check()
        self.turns += 1
        if self.turns == 1:
            self._num_prompt = len(ids)
        self.written_ids += ids[self._num_prompt + len(self.written_ids) :]
        begin = len(self.written_ids)
        self.written_logprobs += [None] * (begin - len(self.written_logprobs))
        self._clear_turn()
        if self._parser is not None:
            self._parser.begin_turn(self.chat.boundaries.opening)
        if self._scores_prompt and self.turns == 1 and isinstance(self._engine, ScoresPrompts):
            self.scores = await self._engine.score(
                ids, sampling=options["sampling"], request_id=self.name, deadline=options["deadline"]
            )
        generation = self._end_turn(await self._engine.generate(ids, request_id=self.name, **options))
        self.written_ids[begin:], self.written_logprobs[begin:] = generation.ids, generation.logprobs
        self._truncate_at = len(self._received)  # later tokens of this name belong to another recorder
        return generation

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
        self.listen()

    def listen(self) -> None:
        """Receive the tokens of the next request, until `release`."""
        if self._records_tokens and isinstance(self._engine, TellsTokens):
            self._engine.on_tokens(self.name, self._receive)

    def release(self, request_id: str) -> None:
        self._engine.release(self.name)

    def _clear_turn(self) -> None:
        self._received: list[int] = []
        """Tokens of the present turn so far."""
        self._logprobs: list[float] = []
        """Their log-probs."""
        self._read = 0
        """The number of parsed tokens."""
        self._truncate_at, self.text, self.made = None, "", ()
        self._text = TurnText(self.chat.decode, self.chat.text.sure_text)
        self._stop_filter = StopSequences(self._stops)

    def check(self) -> None:
        """InferenceError if the client has gone."""
        if self.is_stopped:
            raise InferenceError(STOPPED, "its client ended it", retryable=True)

    def _receive(self, place: int, token: int, logprob: float) -> None:
        """Receive a token of the current turn; a token received before is ignored."""
        if place != len(self._received) or self._truncate_at is not None:
            return
        self._received.append(token)
        self._logprobs.append(logprob)
        if place == self._read:  # tokens of one loop iteration are parsed together
            asyncio.get_running_loop().call_soon(self._read_new)

    def _read_new(self) -> None:
        """Parse the received tokens that are not parsed yet."""
        begin, new = self._read, self._received[self._read :]
        self._read = len(self._received)
        ends = self.chat.stop_ids
        if not self._stops:
            self._emit_text(self._text.add([token for token in new if token not in ends]))
        for place, token in enumerate(new if self._stops else (), begin):
            self._emit_text(self._stop_filter.add("" if token in ends else self._text.add([token])))
            if self._stop_filter.found:
                self._truncate_at = place + 1
                self._abort()
                break
        end = self._truncate_at or self._read
        self.written_ids += self._received[begin:end]
        self.written_logprobs += self._logprobs[begin:end]

    def _end_turn(self, generation: Generation) -> Generation:
        """Emit the rest of the turn. Return the turn for the record."""
        self.text = self.chat.turn_text(generation.ids)
        if not self._records_tokens and self.chat.text.is_joined:  # the text does not depend on the chunks
            self._emit_text(self.text)
        else:
            streamed = self._received[: self._truncate_at]
            if not self.is_stopped and list(generation.ids[: len(streamed)]) != streamed:
                raise InferenceError(
                    "told_otherwise",
                    "the engine restarted and generated other tokens than it had streamed",
                    retryable=True,
                )
            for place in range(len(self._received), len(generation.ids)):
                self._receive(place, generation.ids[place], generation.logprobs[place])
            self._read_new()
        if self._truncate_at is None:
            self._emit_text(self._stop_filter.add(self._text.rest()))
        if self._stop_filter.found and self._truncate_at is None:
            self._truncate_at = len(self._received)
        self._emit_text(self._stop_filter.rest())
        if self._functions and generation.finish is StopReason.stop and self._truncate_at is None:
            self.made = self.chat.calls(self.text, self._functions)
        if self._parser is not None:
            for kind, text in self._parser.end_turn(with_calls=bool(self.made) and not self.calls):
                self.emit(TextPart(self.choice, kind, text))
        if self.cached_tokens is None:
            self.cached_tokens = generation.cached_tokens
        if self._truncate_at is None or self.is_stopped:
            return generation
        self.stopped_by = self._stop_filter.found
        end = self._truncate_at
        self.text = self.chat.turn_text(generation.ids[:end])
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

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of the latest turn for the client; none if one of them is malformed: then all stay text."""
        return () if any([call.malformed is not None for call in self.made]) else self.made

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
