"""What travels through Redis: entries of calls to the workers, answers back to the client. Pure functions.

    entry    {"v", "flavour", "limits": [{...}], "sizes": [of its pieces],
              "calls": [[id, remaining_s, code, stdin, limits index, seed, {file: content}, owner, [fetch],
                         displays, weight]]}    from the files on only as far as a call has any of it
    answers  {"v", "refs": [entry ref], "fields": [...], "results": [[ref index, id, field values...]],
              "errors": [[ref index, id or null, message, kind, retryable]], "sizes"}

JSON as UTF-8 with lone surrogates kept, so that every text arrives as it was sent. Long texts and contents of
a message that is `apart` are pieces beside it (pieces.py); other contents are base64. Field names travel once
per message: nodes of different versions notice each other instead of mixing fields up.

Redis may hold what nobody of ours wrote. What is read here is therefore checked: no message makes more of its
reader fail than itself.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rocstar.sandbox.fabric.pieces import Cut, Joined, sizes_of
from rocstar.sandbox.types import Display, ExecRequest, ExecResult, Limits, SandboxError, Status

VERSION = 2

LIGHT = 1 << 18
"""A message of more than so many characters is `apart`, and carries a single call: what is less takes some
milliseconds to be read and written."""

MAX_BYTES = 4 << 20
"""Longer than any message of ours beside its pieces."""

_MOST_ID = 1 << 64

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
    """These bytes were not written by this version of rocstar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCall:
    """One call inside an entry. `remaining_s`: what was left until its deadline when the entry was written,
    whose Redis id holds that moment by the server's clock; None: no deadline."""

    id: int
    request: ExecRequest
    remaining_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a call. `ref` names the entry that was run; `call_id` None speaks for every call of it
    that has no answer yet, and then the outcome is an error."""

    ref: str
    call_id: int | None
    outcome: Outcome


class EntryDraft:
    """An entry but for what is left of its deadlines, which is written last: its pieces may take a while."""

    def __init__(self, calls: Sequence[tuple[int, ExecRequest]], *, apart: bool = False) -> None:
        """At least one call, all of one flavour."""
        flavours = {request.flavour for _, request in calls}
        if len(flavours) != 1:
            raise ValueError(f"an entry has calls of one flavour, not of {sorted(flavours)}")
        cut = Cut(apart=apart)
        limits: dict[Limits, int] = {}
        self._rows = []
        for call_id, request in calls:
            number = limits.setdefault(request.limits, len(limits))
            texts = cut.text(request.code), cut.text(request.stdin)
            row = [call_id, None, *texts, number, request.seed]
            files = {name: cut.content(content) for name, content in request.files.items()}
            more = [files, request.owner, list(request.fetch), request.displays, request.weight - 1]
            while more and not more[-1]:
                more.pop()
            self._rows.append([*row, *more])
        tables = [{name: getattr(limit, name) for name in _LIMIT_FIELDS} for limit in limits]
        self.pieces = cut.pieces
        self._message = {"v": VERSION, "flavour": flavours.pop(), "limits": tables, **_sizes(cut)}

    def encode(self, remaining_s: Sequence[float | None]) -> bytes:
        for row, seconds in zip(self._rows, remaining_s, strict=True):
            row[1] = seconds
        return _dump({**self._message, "calls": self._rows})


def encode_entry(calls: Sequence[WireCall]) -> bytes:
    """An entry without pieces."""
    draft = EntryDraft([(call.id, call.request) for call in calls])
    return draft.encode([call.remaining_s for call in calls])


class WrittenEntry:
    """An entry as it comes. ids: of its calls. sizes: of its pieces."""

    def __init__(self, blob: bytes) -> None:
        """Raises WireError."""
        with _readable("an entry"):
            self._message = _load(blob)
            self._rows = [(_id(row[0]), *row[1:]) for row in self._message["calls"]]
            self.ids = {row[0] for row in self._rows}
            self.sizes = sizes_of(self._message.get("sizes", []))
            if not self.ids or len(self.ids) != len(self._rows):
                raise ValueError("its calls are none, or have one id")

    def calls(self, pieces: Sequence[bytes] = ()) -> list[WireCall]:
        """The calls. Raises WireError."""
        with _readable("an entry"):
            joined = Joined(pieces)
            limits = [Limits(**table) for table in self._message["limits"]]
            flavour = self._message["flavour"]
            return [
                WireCall(
                    id=call_id,
                    remaining_s=None if remaining_s is None else _seconds(remaining_s),
                    request=ExecRequest(
                        code=joined.text(code),
                        stdin=joined.text(stdin),
                        limits=limits[number],
                        flavour=flavour,
                        seed=seed,
                        files=_files(joined, *more[:1]),
                        owner="".join(more[1:2]),
                        fetch=tuple(*more[2:3]),
                        displays=any(more[3:4]),
                        weight=1 + sum(more[4:5]),
                    ),
                )
                for call_id, remaining_s, code, stdin, number, seed, *more in self._rows
            ]


def decode_entry(blob: bytes, pieces: Sequence[bytes] = ()) -> list[WireCall]:
    """Raises WireError for what `EntryDraft` does not give."""
    return WrittenEntry(blob).calls(pieces)


def _files(joined: Joined, given: Any = None) -> dict[str, bytes]:
    return {name: joined.content(content) for name, content in (given or {}).items()}


def encode_answers(answers: Iterable[Answer], *, apart: bool = False) -> tuple[bytes, list[bytes]]:
    """The message and its pieces."""
    refs: dict[str, int] = {}
    results, errors = [], []
    cut = Cut(apart=apart)
    for answer in answers:
        number = refs.setdefault(answer.ref, len(refs))
        outcome = answer.outcome
        if isinstance(outcome, SandboxError):
            errors.append([number, answer.call_id, str(outcome), outcome.kind, outcome.retryable])
        else:
            results.append([number, answer.call_id, *_values(outcome, cut)])
    message = {"v": VERSION, "refs": list(refs), "fields": _RESULT_FIELDS, **_sizes(cut)}
    return _dump({**message, "results": results, "errors": errors}), cut.pieces


def _values(result: ExecResult, cut: Cut) -> list[Any]:
    values: dict[str, Any] = {name: getattr(result, name) for name in _RESULT_FIELDS}
    values["stdout"], values["stderr"] = cut.text(result.stdout), cut.text(result.stderr)
    values["value"] = None if result.value is None else cut.text(result.value)
    values["files"] = {name: cut.content(content) for name, content in result.files.items()}
    values["displays"] = [[one.mime, cut.content(one.data)] for one in result.displays]
    return list(values.values())


class WrittenAnswers:
    """Answers as they come. sizes: of their pieces."""

    def __init__(self, blob: bytes) -> None:
        """Raises WireError."""
        with _readable("answers"):
            self._message = _load(blob)
            self.sizes = sizes_of(self._message.get("sizes", []))

    def answers(self, pieces: Sequence[bytes] = ()) -> list[Answer]:
        """Results first, then errors. Raises WireError."""
        with _readable("answers"):
            joined, message = Joined(pieces), self._message
            refs = dict(enumerate(map(_text, message["refs"])))
            names = message["fields"]
            answers = [
                Answer(
                    ref=refs[number],
                    call_id=_id(call_id),
                    outcome=_result(dict(zip(names, values, strict=True)), joined),
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


def decode_answers(blob: bytes, pieces: Sequence[bytes] = ()) -> list[Answer]:
    """Raises WireError for what `encode_answers` does not give."""
    return WrittenAnswers(blob).answers(pieces)


def _result(values: dict[str, Any], joined: Joined) -> ExecResult:
    for name, kinds in _RESULT_TYPES.items():
        if type(values[name]) not in kinds:
            raise TypeError(f"{name} is of type {type(values[name]).__name__}")
    value = values["value"]
    texts = {
        "status": Status(values["status"]),
        "stdout": joined.text(values["stdout"]),
        "stderr": joined.text(values["stderr"]),
        "value": None if value is None else joined.text(value),
        "wall_s": _seconds(values["wall_s"], least=0.0),
        "cpu_s": _seconds(values["cpu_s"], least=0.0),
        "files": _files(joined, values["files"]),
        "displays": tuple(Display(_text(mime), joined.content(data)) for mime, data in values["displays"]),
    }
    return ExecResult(**{**values, **texts})


def request_weight(request: ExecRequest) -> int:
    """About how many characters a call takes in a message."""
    files = sum(2 * len(content) for content in request.files.values())
    return 64 + len(request.code) + len(request.stdin) + files


def weight(outcome: Outcome) -> int:
    """The same of an outcome."""
    if isinstance(outcome, SandboxError):
        return 128 + len(str(outcome))
    taken = sum(map(len, outcome.files.values())) + sum(len(one.data) for one in outcome.displays)
    return 256 + len(outcome.stdout) + len(outcome.stderr) + len(outcome.value or "") + taken * 4 // 3


def _id(given: Any) -> int:
    if type(given) is not int or not 0 < given < _MOST_ID:
        raise ValueError("a number that no call has")
    return given


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"something of type {type(given).__name__} in the place of a text")
    return given


def _seconds(given: Any, least: float = -math.inf) -> float:
    if type(given) not in (int, float) or not (math.isfinite(given) and given >= least):
        raise ValueError("a time that no call has")
    seconds: float = given
    return seconds


def _sizes(cut: Cut) -> dict[str, list[int]]:
    return {"sizes": [len(piece) for piece in cut.pieces]} if cut.pieces else {}


def _dump(message: dict[str, Any]) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _load(blob: bytes) -> dict[str, Any]:
    if len(blob) > MAX_BYTES:
        raise ValueError(f"a message of {len(blob)} bytes")
    message = json.loads(blob.decode("utf-8", "surrogatepass"))
    if not isinstance(message, dict) or message.get("v") != VERSION:
        raise ValueError(f"not a message of version {VERSION}")
    return message


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # What was read may be long, and an exception keeps it.
        raise WireError(f"{what} that this version of rocstar cannot read: {str(error)[:200]}") from None
