"""The engine and the tools of one conversation, overheard: the turn loop does not know that somebody listens.

    run_trajectory -> OverheardPolicy.generate -> engine    tokens ──> parts
                   -> OverheardTools.execute   -> sandbox   calls and results ──> parts

So what is served runs the loop that trains. Who waits: as without; listening adds no wait. `stop` ends the
present generation or tool call at once, down to the sandbox's child; what was written stays in the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.inference.base import (
    Generation,
    Inference,
    InferenceError,
    KvLoad,
    PromptScores,
    Sampling,
    ScoresPrompts,
    StopReason,
    TellsTokens,
)
from rocstar.engine.inference.weights import WeightSource
from rocstar.engine.serve.parts import Part, Said, ToolAnswer, ToolUse
from rocstar.engine.serve.spoken import AsWritten, Spoken, StopTexts, TurnText
from rocstar.engine.tools.box import ToolBox, Tools
from rocstar.engine.tools.results import cut_middle
from rocstar.engine.tools.tool import ToolFailure
from rocstar.engine.types import ToolCall, ToolResult

Tell = Callable[[Part], None]
STOPPED = "aborted"
"""The kind of failure of a conversation that its client ended."""


class Overheard:
    """What one choice of a conversation says, and the end that its client may put to it.

    Invariant: what was told of a turn depends on its tokens alone, not on when they came; of a turn that was
    cut at a stop text, nothing behind that is told or recorded; of a turn that is recorded, nothing else was
    told.
    """

    def __init__(
        self,
        name: str,
        choice: int,
        chat: ChatFormat,
        tell: Tell,
        *,
        stops: Sequence[str],
        spoken: Spoken | AsWritten,
        at_once: bool = False,
        scores_prompt: bool = False,
    ) -> None:
        """
        Args:
            name: of the request, at the engine: the answer's id and the choice; no other has it.
            choice: its number, as parts tell it.
            chat: gives texts to tokens.
            tell: hears of every part.
            stops: texts at which a turn of the policy ends, and the conversation with it.
            spoken: tells what is said from what is thought and called.
            at_once: nobody waits for the parts of a turn before it ends.
            scores_prompt: the log-probs of the first prompt are wanted.
        """
        self.name, self.choice, self.chat, self.tell = name, choice, chat, tell
        self.is_stopped = False
        self.is_cut = False
        """A stop text ended it."""
        self.cached_tokens: int | None = None
        """Of the first prompt."""
        self.scores: PromptScores | None = None
        """Of the first prompt, where they were wanted."""
        self.turns = 0
        self._scores_prompt = scores_prompt
        self._stops, self._spoken = tuple(stops), spoken
        self.is_heard = bool(stops) or not at_once
        """Tokens are of interest as they come."""
        self._heard: list[int] = []
        """Tokens of the present turn so far."""
        self._read = 0
        """Of these, how many were read."""
        self._cut_at: int | None = None
        self._text, self._until = TurnText(chat.decode, chat.token_text), StopTexts(stops)
        self._engine: Inference | None = None
        self._tool_wait: asyncio.Timeout | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    # ---- the policy ----

    def begin_turn(self, engine: Inference) -> None:
        """A generation begins. InferenceError if the client has gone."""
        self.check()
        self._engine = engine
        self.turns += 1
        self._heard, self._read, self._cut_at = [], 0, None
        self._text, self._until = TurnText(self.chat.decode, self.chat.token_text), StopTexts(self._stops)
        self._spoken.begin_turn(self.chat.boundaries.opening)

    def check(self) -> None:
        """InferenceError if the client has gone."""
        if self.is_stopped:
            raise InferenceError(STOPPED, "its client ended it", retryable=True)

    def hear(self, place: int, token: int) -> None:
        """A token of the present turn; one that was heard before is passed over."""
        if place != len(self._heard) or self._cut_at is not None:
            return
        self._heard.append(token)
        if place == self._read:  # what comes in one turn of the event loop is told at once
            asyncio.get_running_loop().call_soon(self._read_new)

    def _read_new(self) -> None:
        """The tokens that were heard and not read yet."""
        begin, new = self._read, self._heard[self._read :]
        self._read = len(self._heard)
        ends = self.chat.stop_ids
        if not self._stops:
            self._say("".join([self._text.add(token) for token in new if token not in ends]))
            return
        for place, token in enumerate(new, begin):
            self._say(self._until.add("" if token in ends else self._text.add(token)))
            if self._until.is_cut:
                self._cut_at = place + 1
                self._abort()
                return

    def end_turn(self, generation: Generation) -> Generation:
        """The rest of the turn is told; the turn as it is recorded."""
        if not self.is_heard and self.chat.joins_tokens:  # the text does not depend on how it is cut
            self._say(self.chat.turn_text(generation.ids))
        else:
            self._check_heard(generation)
            for place in range(len(self._heard), len(generation.ids)):
                self.hear(place, generation.ids[place])
            self._read_new()
        if self._cut_at is None:
            self._say(self._until.add(self._text.rest()))
        if self._until.is_cut and self._cut_at is None:
            self._cut_at = len(self._heard)
        self._say(self._until.rest())
        for kind, text in self._spoken.end_turn():
            self.tell(Said(self.choice, kind, text))
        if self.cached_tokens is None:
            self.cached_tokens = generation.cached_tokens
        if self._cut_at is None or self.is_stopped:
            return generation
        self.is_cut = True
        return cut(generation, self._cut_at)

    def _check_heard(self, generation: Generation) -> None:
        """InferenceError for an engine that began anew meanwhile, and wrote other tokens than it had told."""
        told = self._heard[: self._cut_at]
        if not self.is_stopped and list(generation.ids[: len(told)]) != told:
            raise InferenceError("told_otherwise", "the turn is not the one that was told", retryable=True)

    @property
    def wants_scores(self) -> bool:
        """The present turn is the first, and the log-probs of its prompt are wanted."""
        return self._scores_prompt and self.turns == 1

    def _say(self, text: str) -> None:
        if not text:
            return
        for kind, said in self._spoken.add(text):
            self.tell(Said(self.choice, kind, said))

    # ---- its tools ----

    def call_id(self, index: int) -> str:
        """Of the present turn's call with this number; no other answer's call has it."""
        return f"call_{self.name.replace('/', '_')}_{self.turns}_{index}"

    def call_begins(self, calls: Sequence[ToolCall]) -> None:
        """The calls of the present turn are about to be made."""
        for index, call in enumerate(calls):
            self.tell(
                ToolUse(choice=self.choice, id=self.call_id(index), name=call.name, arguments=call.arguments)
            )

    def call_ended(self, calls: Sequence[ToolCall], results: Sequence[ToolResult], max_tokens: int) -> None:
        """Their results, as the policy reads them."""
        for index, (call, result) in enumerate(zip(calls, results, strict=True)):
            self.tell(
                ToolAnswer(
                    choice=self.choice,
                    id=self.call_id(index),
                    name=call.name,
                    status=result.status,
                    is_error=result.is_error,
                    text=cut_middle(result.text, self.chat.tokenizer, max_tokens),
                )
            )

    async def until_stopped(
        self, tools: Tools, calls: Sequence[ToolCall], *, turn: int, deadline: float | None
    ) -> tuple[ToolResult, ...]:
        """The results; ToolFailure if the client ends it meanwhile, and the calls are over then."""
        self.check()
        try:
            async with asyncio.timeout(None) as self._tool_wait:
                return await tools.execute(calls, turn=turn, deadline=deadline)
        except TimeoutError:
            if self.is_stopped:
                raise ToolFailure("its client ended it while a tool ran") from None
            raise
        finally:
            self._tool_wait = None

    # ---- its client ----

    def stop(self) -> None:
        """End it: the loop returns a failed trajectory that holds what was written so far."""
        if self.is_stopped:
            return
        self.is_stopped = True
        if self._tool_wait is not None:
            self._tool_wait.reschedule(asyncio.get_running_loop().time())
        self._abort()

    def _abort(self) -> None:
        if self._engine is not None:
            task = asyncio.ensure_future(self._engine.abort(self.name))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)


def cut(generation: Generation, end: int) -> Generation:
    """The first `end` tokens, ended by a limit of the client's."""
    return replace(
        generation,
        ids=generation.ids[:end],
        logprobs=generation.logprobs[:end],
        version_spans=tuple((a, min(b, end), v) for a, b, v in generation.version_spans if a < end),
        finish=StopReason.length,
    )


class OverheardPolicy:
    """Implements `Inference` for one trajectory, under the name that its request has at the engine."""

    def __init__(self, engine: Inference, overheard: Overheard) -> None:
        self._inner, self._overheard = engine, overheard

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
        self._overheard.begin_turn(self._inner)
        if self._overheard.wants_scores and isinstance(self._inner, ScoresPrompts):
            self._overheard.scores = await self._inner.score(
                ids, sampling=sampling, request_id=self._overheard.name, deadline=deadline
            )
        generation = await self._inner.generate(
            ids,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            sampling=sampling,
            seed=seed,
            request_id=self._overheard.name,
            deadline=deadline,
        )
        return self._overheard.end_turn(generation)

    def load(self) -> KvLoad:
        return self._inner.load()

    async def publish(self, version: int, source: WeightSource | None = None) -> None:
        await self._inner.publish(version, source)

    async def abort(self, request_id: str) -> None:
        await self._inner.abort(self._overheard.name)

    def join(self, request_ids: Sequence[str]) -> None:
        """Who is served waits for nobody."""

    def on_grant(self, request_id: str, granted: Callable[[], None]) -> None:
        self._inner.on_grant(self._overheard.name, granted)
        if self._overheard.is_heard and isinstance(
            self._inner, TellsTokens
        ):  # from here on `release` is sure to come
            self._inner.on_tokens(self._overheard.name, self._overheard.hear)

    def release(self, request_id: str) -> None:
        self._inner.release(self._overheard.name)


class OverheardTools:
    """A tool box of which a client sees every call. Implements `ToolBox` and, when open, `Tools`."""

    def __init__(self, box: ToolBox, overheard: Overheard, *, max_tokens: int) -> None:
        """max_tokens: of a result, as the policy reads it."""
        self._box, self._overheard, self._max_tokens = box, overheard, max_tokens
        self._tools: Tools | None = None

    @asynccontextmanager
    async def open(self, *, seed: int) -> AsyncIterator[Tools]:
        async with self._box.open(seed=seed) as self._tools:
            yield self

    async def execute(
        self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None
    ) -> tuple[ToolResult, ...]:
        assert self._tools is not None, "the tools are not open"
        self._overheard.call_begins(calls)
        results = await self._overheard.until_stopped(self._tools, calls, turn=turn, deadline=deadline)
        self._overheard.call_ended(calls, results, self._max_tokens)
        return results
