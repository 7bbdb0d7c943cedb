"""The messages in Redis: entries of calls for workers, answers for clients, the list of workers. Pure
functions.

    entry    {"v", "sizes": [of its chunks], "calls": [[id, remaining_s, {field of ExecRequest: value}]]}
    answers  {"v", "sizes", "results": [[entry ref, id, {field of ExecResult: value}]],
              "errors": [[entry ref, id or null, message, kind, retryable]]}

MessagePack, whose texts are UTF-8; chunks.py has other texts, and with `apart` those that are long.
Fields that have their default are left out, so "v" is a digest of all fields and defaults: nodes of versions that
differ in one detect each other.

Other programs may write to the same Redis, so every message is checked: an invalid one fails only itself.
"""

import contextlib
import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.fabric.chunks import CHUNK_BYTES, MAX_MESSAGE_BYTES, ChunkJoiner, ChunkSplitter
from rocstar.sandbox.types import Display, ExecRequest, ExecResult, Limits, SandboxError

LIGHT = 1 << 18
"""The characters above which a message has a single call and chunks; a lighter one is read and written in a
few milliseconds."""

MAX_BYTES = 4 << 20
"""The maximum of a message without its chunks."""

MOST_CAPACITY = 1 << 16
"""The most programs at a time of one worker."""

Outcome = ExecResult | SandboxError
CallId = Annotated[int, Meta(gt=0)]


class WireError(ValueError):
    """A message that this version of rocstar did not write."""


def full_error(reason: str) -> SandboxError:
    return SandboxError(f"the fabric is full: {reason}. Try again later.", kind="full", retryable=True)


def format_digest(*kinds: type[Any]) -> int:
    """Return a digest of the names and defaults of the fields of dataclasses."""
    rows = [(one.name, None if one.default is MISSING else one.default) for kind in kinds for one in fields(kind)]
    return zlib.crc32(repr(rows).encode())


VERSION = format_digest(Limits, ExecRequest, Display, ExecResult)


class _Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    v: int = VERSION
    sizes: list[Annotated[int, Meta(gt=0, le=CHUNK_BYTES)]]


class _Entry(_Message, kw_only=True):
    calls: Annotated[list[tuple[CallId, float | None, msgspec.Raw]], Meta(min_length=1)]


class _Answers(_Message, kw_only=True):
    results: list[tuple[str, CallId, msgspec.Raw]]
    errors: list[tuple[str, CallId | None, msgspec.Raw]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCall:
    """One call of an entry. remaining_s: seconds to its deadline when the entry was written, or None; the
    entry's Redis id has that time on the server's clock."""

    id: int
    request: ExecRequest
    remaining_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of a call. ref: the entry that was run. call_id: None means every call of the entry that
    has no answer yet; the outcome is then an error."""

    ref: str
    call_id: int | None
    outcome: Outcome


class EntryDraft:
    """An entry without its remaining times, which are added last because its chunks may take a while to
    write."""

    def __init__(self, calls: Sequence[tuple[int, ExecRequest]], *, apart: bool = False) -> None:
        """calls: at least one, all of one flavour."""
        flavours = {request.flavour for _, request in calls}
        if len(flavours) != 1:
            raise ValueError(f"an entry has calls of one flavour, not of {sorted(flavours)}")
        splitter = ChunkSplitter(apart=apart)
        self._rows = [(call_id, _raw(splitter.pack(request))) for call_id, request in calls]
        self.chunks = splitter.chunks

    def encode(self, remaining_s: Sequence[float | None]) -> bytes:
        rows = [(call_id, left_s, raw) for (call_id, raw), left_s in zip(self._rows, remaining_s, strict=True)]
        return _dump(_Entry(sizes=[*map(len, self.chunks)], calls=rows))


class WrittenEntry:
    """A received entry. ids: the ids of its calls. sizes: the sizes of its chunks."""

    def __init__(self, blob: bytes) -> None:
        """Raises WireError."""
        with _readable("an entry"):
            message = _load(blob, _Entry)
            self._rows, self.sizes = message.calls, message.sizes
            self.ids = {call_id for call_id, _, _ in self._rows}
            if len(self.ids) != len(self._rows):
                raise ValueError("two calls have the same id")

    def calls(self, chunks: Sequence[bytes] = ()) -> list[WireCall]:
        """Return the calls. Raise WireError."""
        with _readable("an entry"):
            found = []
            for call_id, remaining_s, raw in self._rows:
                request = _unpacked(raw, chunks, ExecRequest)
                request = replace(request, fetch=tuple(request.fetch))
                found.append(WireCall(id=call_id, remaining_s=_finite(remaining_s), request=request))
            return found


def encode_answers(answers: Iterable[Answer], *, apart: bool = False) -> tuple[bytes, list[bytes]]:
    """Return (message, chunks)."""
    results, errors = [], []
    splitter = ChunkSplitter(apart=apart)
    for answer in answers:
        outcome = answer.outcome
        if isinstance(outcome, SandboxError):
            error = splitter.pack([str(outcome), outcome.kind, outcome.retryable])
            errors.append((answer.ref, answer.call_id, _raw(error)))
        else:
            assert answer.call_id is not None, "a result is of one call"
            results.append((answer.ref, answer.call_id, _raw(splitter.pack(outcome))))
    message = _Answers(sizes=[*map(len, splitter.chunks)], results=results, errors=errors)
    return _dump(message), splitter.chunks


class WrittenAnswers:
    """A received message of answers. sizes: the sizes of its chunks."""

    def __init__(self, blob: bytes) -> None:
        """Raises WireError."""
        with _readable("answers"):
            self._message = _load(blob, _Answers)
            self.sizes = self._message.sizes

    def answers(self, chunks: Sequence[bytes] = ()) -> list[Answer]:
        """Return the results, then the errors. Raise WireError."""
        with _readable("answers"):
            answers = []
            for ref, call_id, raw in self._message.results:
                result = _unpacked(raw, chunks, ExecResult)
                if min(_finite(result.wall_s), _finite(result.cpu_s)) < 0:
                    raise ValueError("a time is less than 0")
                answers.append(Answer(ref=ref, call_id=call_id, outcome=result))
            for ref, some_id, raw in self._message.errors:
                text, kind, retryable = _unpacked(raw, chunks, tuple[str, str, bool])
                error = SandboxError(text, kind=kind, retryable=retryable)
                answers.append(Answer(ref=ref, call_id=some_id, outcome=error))
            return answers


def request_weight(request: ExecRequest) -> int:
    """Return the characters that a call takes in a message, approximately."""
    files = sum(2 * len(content) for content in request.files.values())
    return 64 + len(request.code) + len(request.stdin) + files


def weight(outcome: Outcome) -> int:
    """Return the characters that an outcome takes in a message, approximately."""
    if isinstance(outcome, SandboxError):
        return 128 + len(str(outcome))
    taken = sum(map(len, outcome.files.values())) + sum(len(one.data) for one in outcome.displays)
    return 256 + len(outcome.stdout) + len(outcome.stderr) + len(outcome.value or "") + taken * 4 // 3


T = TypeVar("T")
M = TypeVar("M", bound=_Message)
N = TypeVar("N", float, float | None)


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def _unpacked(raw: msgspec.Raw, chunks: Sequence[bytes], kind: type[T]) -> T:
    value = msgspec.msgpack.decode(raw, ext_hook=ChunkJoiner(chunks).unpack)
    if isinstance(value, dict) and (unknown := value.keys() - {field.name for field in fields(kind)}):  # type: ignore[arg-type]
        raise ValueError(f"unknown field {min(unknown)!r}")
    return msgspec.convert(value, kind)


def _finite(seconds: N) -> N:
    if seconds is not None and not math.isfinite(seconds):
        raise ValueError("a time is not finite")
    return seconds


def _dump(message: _Message) -> bytes:
    return msgspec.msgpack.encode(message)


def _load(blob: bytes, kind: type[M]) -> M:
    if len(blob) > MAX_BYTES:
        raise ValueError(f"the message has {len(blob)} bytes")
    message = msgspec.msgpack.decode(blob, type=kind)
    if message.v != VERSION:
        raise ValueError(f"it has version {message.v}, this node {VERSION}")
    if sum(message.sizes) > MAX_MESSAGE_BYTES:
        raise ValueError(f"the chunks have {sum(message.sizes)} bytes, more than {MAX_MESSAGE_BYTES}")
    return message


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (
        *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
        *(msgspec.MsgspecError, struct.error),
    ) as error:
        # An exception keeps its text, which may contain a long message.
        raise WireError(f"this version of rocstar cannot read {what}: {str(error)[:200]}") from None


# --- the list of workers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A live worker: a member of a sorted set whose score is the end of its lease on Redis's clock. capacity:
    the programs that it runs at a time."""

    name: str
    capacity: Annotated[int, Meta(ge=1, le=MOST_CAPACITY)]
    flavours: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} runs {self.capacity} programs at a time ({', '.join(self.flavours)})"


def encode_worker(info: WorkerInfo) -> str:
    return json.dumps(asdict(info))


def decode_workers(members: Iterable[bytes]) -> list[WorkerInfo]:
    """Return the workers. Omit members of other versions, and unknown flavours."""
    workers = []
    for member in members:
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):  # written by another version
            worker = msgspec.json.decode(member, type=WorkerInfo)
            if known := tuple(name for name in FLAVOURS if name in worker.flavours):
                workers.append(replace(worker, flavours=known))
    return workers
