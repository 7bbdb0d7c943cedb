"""The messages in Redis: entries of calls for workers, answers for clients, the list of workers. Pure
functions.

    entry    {"v", "flavour", "limits": [{...}], "sizes": [of its chunks],
              "calls": [[id, remaining_s, code, stdin, limits index, seed, {file: content}, owner, [fetch],
                         displays, weight]]}    from the files on, trailing empty fields are omitted
    answers  {"v", "refs": [entry ref], "fields": [...], "results": [[ref index, id, field values...]],
              "errors": [[ref index, id or null, message, kind, retryable]], "sizes"}

JSON as UTF-8 that keeps lone surrogates, so that every text arrives unchanged. With `apart`, long texts and
contents of a message are chunks beside it (chunks.py); other contents are base64. Each message has the field
names once, so that nodes of different versions detect each other instead of confusing fields.

Other programs may write to the same Redis, so every message is checked: an invalid one fails only itself.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.fabric.chunks import ChunkJoiner, ChunkSplitter, sizes_of
from rocstar.sandbox.types import Display, ExecRequest, ExecResult, Limits, SandboxError, Status

VERSION = 2

LIGHT = 1 << 18
"""The characters above which a message has a single call and chunks; a lighter one is read and written in a
few milliseconds."""

MAX_BYTES = 4 << 20
"""The maximum of a message without its chunks."""

_MOST_ID = 1 << 64

MOST_CAPACITY = 1 << 16
"""The most programs at a time of one worker."""

Outcome = ExecResult | SandboxError

_RESULT_FIELDS = [field.name for field in fields(ExecResult)]
_LIMIT_FIELDS = [field.name for field in fields(Limits)]
_RESULT_TYPES: dict[str, tuple[type, ...]] = {
    "exit_code": (int, type(None)),
    "signal": (int, type(None)),
    "stdout_truncated": (bool,),
    "stderr_truncated": (bool,),
    "wall_s": (int, float),
    "cpu_s": (int, float),
    "peak_memory_bytes": (int,),
    "isolation": (str,),
    "tier": (str,),
}


class WireError(ValueError):
    """A message that this version of rocstar did not write."""


def full_error(reason: str) -> SandboxError:
    return SandboxError(f"the fabric is full: {reason}. Try again later.", kind="full", retryable=True)


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
        limits: dict[Limits, int] = {}
        self._rows = []
        for call_id, request in calls:
            number = limits.setdefault(request.limits, len(limits))
            texts = splitter.text(request.code), splitter.text(request.stdin)
            row = [call_id, None, *texts, number, request.seed]
            files = {name: splitter.content(content) for name, content in request.files.items()}
            more = [files, request.owner, list(request.fetch), request.displays, request.weight - 1]
            while more and not more[-1]:
                more.pop()
            self._rows.append([*row, *more])
        tables = [{name: getattr(limit, name) for name in _LIMIT_FIELDS} for limit in limits]
        self.chunks = splitter.chunks
        self._message = {"v": VERSION, "flavour": flavours.pop(), "limits": tables, **_sizes(splitter)}

    def encode(self, remaining_s: Sequence[float | None]) -> bytes:
        for row, seconds in zip(self._rows, remaining_s, strict=True):
            row[1] = seconds
        return _dump({**self._message, "calls": self._rows})


class WrittenEntry:
    """A received entry. ids: the ids of its calls. sizes: the sizes of its chunks."""

    def __init__(self, blob: bytes) -> None:
        """Raises WireError."""
        with _readable("an entry"):
            self._message = _load(blob)
            self._rows = [(_id(row[0]), *row[1:]) for row in self._message["calls"]]
            self.ids = {row[0] for row in self._rows}
            self.sizes = sizes_of(self._message.get("sizes", []))
            if not self.ids or len(self.ids) != len(self._rows):
                raise ValueError("it has no calls, or two calls have the same id")

    def calls(self, chunks: Sequence[bytes] = ()) -> list[WireCall]:
        """Return the calls. Raise WireError."""
        with _readable("an entry"):
            joiner = ChunkJoiner(chunks)
            limits = [Limits(**table) for table in self._message["limits"]]
            flavour = self._message["flavour"]
            return [
                WireCall(
                    id=call_id,
                    remaining_s=None if remaining_s is None else _seconds(remaining_s),
                    request=ExecRequest(
                        code=joiner.text(code),
                        stdin=joiner.text(stdin),
                        limits=limits[number],
                        flavour=flavour,
                        seed=seed,
                        files=_files(joiner, *more[:1]),
                        owner="".join(more[1:2]),
                        fetch=tuple(*more[2:3]),
                        displays=any(more[3:4]),
                        weight=1 + sum(more[4:5]),
                    ),
                )
                for call_id, remaining_s, code, stdin, number, seed, *more in self._rows
            ]


def _files(joiner: ChunkJoiner, given: Any = None) -> dict[str, bytes]:
    return {name: joiner.content(content) for name, content in (given or {}).items()}


def encode_answers(answers: Iterable[Answer], *, apart: bool = False) -> tuple[bytes, list[bytes]]:
    """Return (message, chunks)."""
    refs: dict[str, int] = {}
    results, errors = [], []
    splitter = ChunkSplitter(apart=apart)
    for answer in answers:
        number = refs.setdefault(answer.ref, len(refs))
        outcome = answer.outcome
        if isinstance(outcome, SandboxError):
            errors.append([number, answer.call_id, str(outcome), outcome.kind, outcome.retryable])
        else:
            results.append([number, answer.call_id, *_values(outcome, splitter)])
    message = {"v": VERSION, "refs": list(refs), "fields": _RESULT_FIELDS, **_sizes(splitter)}
    return _dump({**message, "results": results, "errors": errors}), splitter.chunks


def _values(result: ExecResult, splitter: ChunkSplitter) -> list[Any]:
    values: dict[str, Any] = {name: getattr(result, name) for name in _RESULT_FIELDS}
    values["stdout"], values["stderr"] = splitter.text(result.stdout), splitter.text(result.stderr)
    values["value"] = None if result.value is None else splitter.text(result.value)
    values["files"] = {name: splitter.content(content) for name, content in result.files.items()}
    values["displays"] = [[one.mime, splitter.content(one.data)] for one in result.displays]
    return list(values.values())


class WrittenAnswers:
    """A received message of answers. sizes: the sizes of its chunks."""

    def __init__(self, blob: bytes) -> None:
        """Raises WireError."""
        with _readable("answers"):
            self._message = _load(blob)
            self.sizes = sizes_of(self._message.get("sizes", []))

    def answers(self, chunks: Sequence[bytes] = ()) -> list[Answer]:
        """Return the results, then the errors. Raise WireError."""
        with _readable("answers"):
            joiner, message = ChunkJoiner(chunks), self._message
            refs = dict(enumerate(map(_text, message["refs"])))
            names = message["fields"]
            answers = [
                Answer(
                    ref=refs[number],
                    call_id=_id(call_id),
                    outcome=_result(dict(zip(names, values, strict=True)), joiner),
                )
                for number, call_id, *values in message["results"]
            ]
            return answers + [
                Answer(
                    ref=refs[number],
                    call_id=None if call_id is None else _id(call_id),
                    outcome=SandboxError(_text(text), kind=_text(kind), retryable=retryable is True),
                )
                for number, call_id, text, kind, retryable in message["errors"]
            ]


def _result(values: dict[str, Any], joiner: ChunkJoiner) -> ExecResult:
    for name, kinds in _RESULT_TYPES.items():
        if type(values[name]) not in kinds:
            raise TypeError(f"{name} is of type {type(values[name]).__name__}")
    value = values["value"]
    texts = {
        "status": Status(values["status"]),
        "stdout": joiner.text(values["stdout"]),
        "stderr": joiner.text(values["stderr"]),
        "value": None if value is None else joiner.text(value),
        "wall_s": _seconds(values["wall_s"], least=0.0),
        "cpu_s": _seconds(values["cpu_s"], least=0.0),
        "files": _files(joiner, values["files"]),
        "displays": tuple(Display(_text(mime), joiner.content(data)) for mime, data in values["displays"]),
    }
    return ExecResult(**{**values, **texts})


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


def _id(given: Any) -> int:
    if type(given) is not int or not 0 < given < _MOST_ID:
        raise ValueError("invalid call id")
    return given


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"expected a text, not {type(given).__name__}")
    return given


def _seconds(given: Any, least: float = -math.inf) -> float:
    if type(given) not in (int, float) or not (math.isfinite(given) and given >= least):
        raise ValueError("invalid time")
    seconds: float = given
    return seconds


def _sizes(splitter: ChunkSplitter) -> dict[str, list[int]]:
    return {"sizes": [len(chunk) for chunk in splitter.chunks]} if splitter.chunks else {}


def _dump(message: dict[str, Any]) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _load(blob: bytes) -> dict[str, Any]:
    if len(blob) > MAX_BYTES:
        raise ValueError(f"the message has {len(blob)} bytes")
    message = json.loads(blob.decode("utf-8", "surrogatepass"))
    if not isinstance(message, dict) or message.get("v") != VERSION:
        raise ValueError(f"it is not a message of version {VERSION}")
    return message


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # An exception keeps its text, which may contain a long message.
        raise WireError(f"this version of rocstar cannot read {what}: {str(error)[:200]}") from None


# --- the list of workers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A live worker: a member of a sorted set whose score is the end of its lease on Redis's clock. capacity:
    the programs that it runs at a time."""

    name: str
    capacity: int
    flavours: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} runs {self.capacity} programs at a time ({', '.join(self.flavours)})"


def encode_worker(info: WorkerInfo) -> str:
    return json.dumps(asdict(info))


def decode_workers(members: Iterable[bytes]) -> list[WorkerInfo]:
    """Return the workers. Omit members of other versions, and unknown flavours."""
    workers = []
    for member in members:
        try:
            fields = json.loads(member)
            known = tuple(name for name in FLAVOURS if name in list(fields["flavours"]))
            worker = WorkerInfo(**{**fields, "flavours": known})
            if known and type(worker.name) is str and type(worker.capacity) is int:
                workers += [worker] if 1 <= worker.capacity <= MOST_CAPACITY else []
        except (LookupError, RecursionError, TypeError, ValueError):
            continue  # written by another version
    return workers
