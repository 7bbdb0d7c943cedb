"""Read request bodies outside the event loop, within the limits of the model.

    body ──small──> parsed in the event loop
         ──large──> parsed in a process (decode_process.py): the JSON parser holds the interpreter's lock
    order, ids, text ──> a thread; tokenizers release the lock

A prompt must fit the model's context before it is tokenized: a token has a bounded number of characters, so
the length of a text gives a lower bound of its tokens. The same holds for ids, messages and special tokens.

At most `THREADS` jobs run and `MAX_WAITING` wait, each for `WORK_S` at most. A thread cannot be interrupted,
so `RequestLimits` bounds the work of each.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct

from rocstar.engine.chat.chat import Tokenizer, special_tokens
from rocstar.engine.gateway.dialects.fields import Fields, Known, num_unknown_bytes
from rocstar.engine.gateway.messages import Request
from rocstar.engine.serve.requests import MAX_FIELDS, GenerationRequest
from rocstar.sandbox.http.decode_process import DecodePool
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.types import SandboxError

R = TypeVar("R", bound=Struct)
MAX_ITEMS = 1 << 20
"""Objects, lists and values of a request's tools and calls, if the context is not known."""

ITEMS_PER_TOKEN = 4
UNKNOWN_TOKEN_CHARS = 256
"""Characters of the longest token of a tokenizer without a list of its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits of one model and server. Pickled to the processes that read large bodies.

    Attributes:
        max_tokens: of a prompt and its answer together; None if the engine does not report it.
        token_chars: characters of the longest token.
        special: texts that the tokenizer turns into one control token each.
        max_choices: choices of one request.
    """

    max_tokens: int | None
    token_chars: int = UNKNOWN_TOKEN_CHARS
    special: frozenset[str] = frozenset()
    max_choices: int = 1024

    def check(self, request: Request, num_bytes: int) -> None:
        """Raise RequestError for a request that cannot fit, whatever the tokenizer returns.

        num_bytes: the size of its body.
        """
        prompts = request.prompts if isinstance(request, GenerationRequest) else ()
        num_choices = request.num_choices if isinstance(request, GenerationRequest) else 1
        if len(prompts) * num_choices > self.max_choices:
            raise RequestError(
                f"prompt has {len(prompts)} entries of {num_choices} choices each; one request may "
                f"have {self.max_choices} choices: send fewer prompts per request",
                field="prompt",
                kind="invalid_value",
            )
        if num_bytes <= (MAX_ITEMS if self.max_tokens is None else self.max_tokens):
            return  # a byte is at most one token
        prefix = (request.prefix_ids or ()) if isinstance(request, GenerationRequest) else ()
        self._check_ids(prefix, "prefix_token_ids")
        for prompt in (*prompts, request.prompt_ids or (), request.prompt_text or ""):
            if isinstance(prompt, str):
                self._check_text([prompt], "prompt")
            else:
                self._check_ids(prompt, "prompt")
        self._check_ids(request.messages, "messages")
        texts = [text for message in request.messages for text in (message.text, message.reasoning)]
        calls = [
            text for message in request.messages for call in message.calls for text in (call.name, call.arguments)
        ]
        self._check_text(texts + calls, "messages")
        self._check_text(_all_texts(list(request.functions)), "tools")

    def _check_ids(self, ids: Any, param: str) -> None:
        if self.max_tokens is not None and len(ids) > self.max_tokens:
            raise self._too_long(f"{param} has {len(ids)} entries of at least one token each", param)

    def _check_text(self, texts: list[str], param: str) -> None:
        most = MAX_ITEMS if self.max_tokens is None else ITEMS_PER_TOKEN * self.max_tokens + MAX_FIELDS
        if len(texts) > most:
            raise self._too_long(f"{param} has {len(texts)} values, at most {most} are read", param)
        if self.max_tokens is None:
            return
        chars = sum(map(len, texts))
        if chars > self.max_tokens * self.token_chars:
            raise self._too_long(
                f"{param} has {chars} characters, and the longest token has {self.token_chars}", param
            )
        begins = {mark[:1] for mark in self.special}  # few, where there may be a thousand special tokens
        if sum(text.count(begin) for text in texts for begin in begins) <= self.max_tokens:
            return
        marks = sum(text.count(mark) for text in texts for mark in self.special)
        if marks > self.max_tokens:
            raise self._too_long(f"{param} holds {marks} special tokens as text", param)

    def _too_long(self, what: str, param: str) -> RequestError:
        return RequestError(
            f"{what}: it cannot fit into the {self.max_tokens or 'many'} tokens that the model takes with "
            "its answer; send fewer or shorter texts",
            field=param,
            kind="context_length_exceeded",
        )


def limits_for_tokenizer(tokenizer: Tokenizer, *, max_tokens: int | None, max_choices: int) -> RequestLimits:
    """The limits that follow from a tokenizer."""
    list_vocab = getattr(tokenizer, "get_vocab", None)
    vocab: Iterable[str] = list_vocab() if callable(list_vocab) else ()
    return RequestLimits(
        max_tokens=max_tokens,
        token_chars=max(map(len, vocab), default=UNKNOWN_TOKEN_CHARS),
        special=special_tokens(tokenizer),
        max_choices=max_choices,
    )


def read_within_limits(
    body: bytes, read: Callable[[Fields], R], bounds: RequestLimits, known: Known | None = None
) -> R:
    """Read a body within the limits. Raises RequestError for the first invalid field."""
    request = read(Fields.of_body(body, known))
    if isinstance(request, Request):
        bounds.check(request, len(body))
    return request


def _all_texts(value: Any) -> list[str]:
    """Return the texts of a JSON value, including names, and "" for each other value."""
    found: list[str] = []
    left = [value]
    while left:
        one = left.pop()
        found.append(one if isinstance(one, str) else "")
        if isinstance(one, Mapping):
            left += [*one, *one.values()]
        elif isinstance(one, list):
            left += one
    return found


THREADS = 4
MAX_WAITING = 256
WORK_S = 60.0
SMALL_BYTES, FEW_ITEMS = 1 << 16, 1000
"""A body of at most this size and number of commas takes about a millisecond to parse."""
FEW_BYTES = 1 << 13
"""And so does a body of at most this size."""

P = ParamSpec("P")
T = TypeVar("T")


class RequestReader:
    """The threads and processes of one endpoint. Invariant: `close` leaves none that waits."""

    def __init__(self, bounds: RequestLimits) -> None:
        self._bounds = bounds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="requests")
        self._apart = DecodePool(bounds)
        self._jobs: list[Future[Any]] = []
        """Jobs that ran or waited when the last one came. Only the event loop uses the list."""

    def close(self) -> None:
        """Stop the processes; each thread ends after its current job."""
        self._apart.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, read: Callable[[Fields], R], body: bytes, known: Known | None = None) -> R:
        """Read the body within the limits. Raises RequestError.

        known: the values read from an earlier body.
        """
        reading = partial(read_within_limits, read=read, bounds=self._bounds)
        is_small = len(body) <= SMALL_BYTES and body.count(b",") <= FEW_ITEMS
        if is_small or (known and num_unknown_bytes(body, known) <= FEW_BYTES):
            return reading(body, known=known)
        try:
            return await self.run(self._apart.call, reading, body)
        except SandboxError as error:
            raise RequestError(f"the body was not read: {error}; ask again", status=503, kind="busy") from None

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread. Raises RequestError if too many jobs wait, or at the timeout."""
        self._jobs = [job for job in self._jobs if not job.done()]
        if len(self._jobs) >= THREADS + MAX_WAITING:
            raise RequestError(
                f"{len(self._jobs)} requests are being read; ask again later", status=429, kind="queue_full"
            )
        job = self._threads.submit(work, *args, **kwargs)
        self._jobs.append(job)
        try:
            async with asyncio.timeout(WORK_S):
                return await asyncio.wrap_future(job)
        except TimeoutError:
            raise RequestError(
                f"the request was not read within {WORK_S:g} s; ask again later", status=503, kind="busy"
            ) from None
