"""What travels through Redis: entries of calls to the workers, answers back to the client. Pure functions.

    entry    {"v", "flavour", "limits": [{...}],
              "calls": [[id, remaining_s, code, stdin, limits index, seed, {file: base64}, owner, [fetch],
                         displays, weight]]}    from the files on only as far as a call has any of it
    answers  {"v", "refs": [entry ref], "fields": [...], "results": [[ref index, id, field values...]],
              "errors": [[ref index, id or null, message, kind, retryable]]}

JSON as UTF-8 with lone surrogates kept, so that every text arrives as it was sent. Field names travel once
per message: nodes of different versions notice each other instead of mixing fields up.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError

VERSION = 1

MAX_ANSWER_BYTES = 256 << 20
"""Largest encoded message: Redis refuses values of 512 MiB, and closes the connection."""

Outcome = ExecResult | SandboxError

_RESULT_FIELDS = [field.name for field in fields(ExecResult)]
_LIMIT_FIELDS = [field.name for field in fields(Limits)]


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


def encode_entry(calls: Sequence[WireCall]) -> bytes:
    """The calls of one entry, at least one, all of one flavour."""
    flavours = {call.request.flavour for call in calls}
    if len(flavours) != 1:
        raise ValueError(f"an entry has calls of one flavour, not of {sorted(flavours)}")
    limits: dict[Limits, int] = {}
    rows = []
    for call in calls:
        request = call.request
        number = limits.setdefault(request.limits, len(limits))
        row = [call.id, call.remaining_s, request.code, request.stdin, number, request.seed]
        files = {name: b64encode(content).decode() for name, content in request.files.items()}
        more = [files, request.owner, list(request.fetch), request.displays, request.weight - 1]
        while more and not more[-1]:
            more.pop()
        rows.append([*row, *more])
    tables = [{name: getattr(limit, name) for name in _LIMIT_FIELDS} for limit in limits]
    return _dump({"v": VERSION, "flavour": flavours.pop(), "limits": tables, "calls": rows})


def decode_entry(blob: bytes) -> list[WireCall]:
    """The inverse of `encode_entry`. Raises WireError for anything else."""
    try:
        message = _load(blob)
        limits = [Limits(**table) for table in message["limits"]]
        flavour = message["flavour"]
        calls = [
            WireCall(
                id=call_id,
                remaining_s=remaining_s,
                request=ExecRequest(
                    code=code,
                    stdin=stdin,
                    limits=limits[number],
                    flavour=flavour,
                    seed=seed,
                    files=_files(*more[:1]),
                    owner="".join(more[1:2]),
                    fetch=tuple(*more[2:3]),
                    displays=any(more[3:4]),
                    weight=1 + sum(more[4:5]),
                ),
            )
            for call_id, remaining_s, code, stdin, number, seed, *more in message["calls"]
        ]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise WireError(f"an entry that this version of rocstar cannot read: {error}") from error
    if not calls:
        raise WireError("an entry without calls")
    return calls


def _files(encoded: dict[str, str] | None = None) -> dict[str, bytes]:
    return {name: b64decode(text, validate=True) for name, text in (encoded or {}).items()}


def encode_answers(answers: Iterable[Answer]) -> bytes:
    refs: dict[str, int] = {}
    results, errors = [], []
    for answer in answers:
        number = refs.setdefault(answer.ref, len(refs))
        outcome = answer.outcome
        if isinstance(outcome, SandboxError):
            errors.append([number, answer.call_id, str(outcome), outcome.kind, outcome.retryable])
        else:
            values = list(outcome.to_json().values())
            results.append([number, answer.call_id, *values])
    message = {"v": VERSION, "refs": list(refs), "fields": _RESULT_FIELDS}
    return _dump({**message, "results": results, "errors": errors})


def decode_answers(blob: bytes) -> list[Answer]:
    """The inverse of `encode_answers`: results first, then errors. Raises WireError for anything else."""
    try:
        message = _load(blob)
        refs, names = message["refs"], message["fields"]
        answers = [
            Answer(
                ref=refs[number],
                call_id=call_id,
                outcome=ExecResult.from_json(dict(zip(names, values, strict=True))),
            )
            for number, call_id, *values in message["results"]
        ]
        answers += [
            Answer(
                ref=refs[number],
                call_id=call_id,
                outcome=SandboxError(text, kind=kind, retryable=retryable),
            )
            for number, call_id, text, kind, retryable in message["errors"]
        ]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise WireError(f"answers that this version of rocstar cannot read: {error}") from error
    return answers


def weight(outcome: Outcome) -> int:
    """About how many characters an outcome takes in a message."""
    if isinstance(outcome, SandboxError):
        return 128 + len(str(outcome))
    taken = sum(map(len, outcome.files.values())) + sum(len(one.data) for one in outcome.displays)
    return 256 + len(outcome.stdout) + len(outcome.stderr) + len(outcome.value or "") + taken * 4 // 3


def _dump(message: dict[str, Any]) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _load(blob: bytes) -> dict[str, Any]:
    message = json.loads(blob.decode("utf-8", "surrogatepass"))
    if not isinstance(message, dict) or message.get("v") != VERSION:
        raise ValueError(f"not a message of version {VERSION}")
    return message
