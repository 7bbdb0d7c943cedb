"""Bytes of a request body to typed calls. Pure: no I/O, no clock.

Whatever the bytes are, these functions return calls or raise `Refused` naming the field, and nothing else.
In a batch each item is either an `ExecRequest` or its own `Refused`: one bad item does not harm the others.
"""

import difflib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from rocstar.sandbox.scan import flavour_for
from rocstar.sandbox.service.errors import Refused, TooLarge, Unparsable
from rocstar.sandbox.types import DEFAULT_LIMITS, LIMIT_BOUNDS, MAX_TEXT_BYTES, ExecRequest, Limits

AUTO = "auto"
"""The flavour of a call that names none: chosen by what the program imports."""

MAX_DEADLINE_S = 86_400.0

REQUEST_FIELDS = frozenset(("code", "stdin", "limits", "flavour", "seed"))
RUN_FIELDS = REQUEST_FIELDS | {"deadline_s"}
BATCH_FIELDS = frozenset(("requests", "deadline_s", "stream"))
SESSION_FIELDS = frozenset(("flavour", "limits", "seed"))
CELL_FIELDS = frozenset(("code", "wall_s", "deadline_s"))
LIMIT_FIELDS = frozenset(Limits.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the service accepts. flavours: those there are. The others are the largest values taken."""

    flavours: tuple[str, ...]
    max_calls_per_batch: int = 65_536
    max_wall_s: float = 3600.0
    max_memory_bytes: int = 64 << 30
    default_limits: Limits = field(default=DEFAULT_LIMITS)

    def bounds_of(self, limit: str) -> tuple[Any, Any]:
        """The least and the most of a field of Limits."""
        low, high = LIMIT_BOUNDS[limit]
        most = {"wall_s": self.max_wall_s, "memory_bytes": self.max_memory_bytes}
        return low, min(high, most.get(limit, high))

    def choose(self, code: str) -> str:
        """The flavour that suits a program."""
        return flavour_for(code, self.flavours)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCall:
    request: ExecRequest
    deadline_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCall:
    requests: list[ExecRequest | Refused]
    deadline_s: float | None
    stream: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCall:
    flavour: str
    limits: Limits
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCall:
    code: str
    wall_s: float | None
    deadline_s: float | None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)
_LAX = json.JSONDecoder()


def parse_json(body: bytes, *, strict: bool = True) -> Any:
    """The value of a JSON document. strict: NaN and Infinity are refused, as the standard has it."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unparsable(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        return (_STRICT if strict else _LAX).decode(text)
    except json.JSONDecodeError as error:
        raise Unparsable(
            f"the body is not JSON: {error.msg} at character {error.pos}",
            position=error.pos,
            reason=error.msg,
        ) from None
    except RecursionError:
        raise Unparsable("the body is nested too deeply") from None
    except ValueError as error:  # a constant, or an integer of more digits than the interpreter converts
        raise Unparsable(f"the body is not JSON that can be read: {error}") from None


def decode_run(body: bytes, rules: Rules) -> RunCall:
    fields = _object(parse_json(body), "", RUN_FIELDS)
    request = _request(fields, "", rules)
    return RunCall(request=request, deadline_s=_deadline(fields))


def decode_batch(body: bytes, rules: Rules) -> BatchCall:
    fields = _object(parse_json(body), "", BATCH_FIELDS)
    items = fields.get("requests")
    if not isinstance(items, list):
        raise Refused(f"requests is {_shown(items)}; give a list of calls", field="requests")
    if not items:
        raise Refused("requests is empty; give at least one call", field="requests")
    if len(items) > rules.max_calls_per_batch:
        raise TooLarge(
            f"requests has {len(items)} calls; at most {rules.max_calls_per_batch} go into one batch",
            field="requests",
        )
    stream = fields.get("stream", False)
    if not isinstance(stream, bool):
        raise Refused(f"stream is {_shown(stream)}; give true or false", field="stream")
    deadline_s = _deadline(fields)
    return BatchCall(
        requests=[_item(item, i, rules) for i, item in enumerate(items)], deadline_s=deadline_s, stream=stream
    )


def _item(item: Any, index: int, rules: Rules) -> ExecRequest | Refused:
    try:
        if type(item) is not dict or not item.keys() <= REQUEST_FIELDS:
            _object(item, f"requests[{index}]", REQUEST_FIELDS)
        return _request(item, f"requests[{index}].", rules)
    except Refused as refusal:
        return refusal


def decode_session(body: bytes, rules: Rules) -> SessionCall:
    fields = _object(parse_json(body or b"{}"), "", SESSION_FIELDS)
    flavour = _flavour(fields.get("flavour", AUTO), "", rules, code="")
    return SessionCall(
        flavour=flavour, limits=_limits(fields.get("limits"), "", rules), seed=_seed(fields.get("seed"), "")
    )


def decode_cell(body: bytes, rules: Rules) -> CellCall:
    fields = _object(parse_json(body), "", CELL_FIELDS)
    wall_s = fields.get("wall_s")
    if wall_s is not None:
        wall_s = _positive(wall_s, "wall_s", rules.max_wall_s)
    return CellCall(code=_code(fields, ""), wall_s=wall_s, deadline_s=_deadline(fields))


def _object(value: Any, where: str, known: Collection[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refused(f"{where or 'the body'} is {_shown(value)}; give an object", field=where or "body")
    for name in value:
        if name not in known:
            near = difflib.get_close_matches(name[:100], known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
            path = ascii(f"{where}.{name}" if where else name)[1:-1][:120] or "''"
            raise Refused(f"{path} is no field of this request{hint}", field=path)
    return value


def _request(fields: Mapping[str, Any], prefix: str, rules: Rules) -> ExecRequest:
    code = _code(fields, prefix)
    stdin = fields.get("stdin")
    if stdin is None:
        stdin = ""
    else:
        check_text(stdin, prefix + "stdin")
    limits = rules.default_limits
    if (given := fields.get("limits")) is not None:
        limits = _limits(given, prefix, rules)
    seed = fields.get("seed")
    if seed is not None:
        seed = _seed(seed, prefix)
    flavour = _flavour(fields.get("flavour", AUTO), prefix, rules, code=code)
    return ExecRequest(code=code, stdin=stdin, limits=limits, flavour=flavour, seed=seed)


def _code(fields: Mapping[str, Any], prefix: str) -> str:
    code = fields.get("code")
    if code is None:
        raise Refused(f"{prefix}code is missing; give the program's text", field=prefix + "code")
    check_text(code, prefix + "code")
    if "\0" in code:
        raise Refused(
            f"{prefix}code has a NUL at {code.index(chr(0))}; Python reads none", field=prefix + "code"
        )
    assert isinstance(code, str)
    return code


def check_text(value: Any, name: str) -> None:
    """Refuses what no program can be given: not a string, too long, or half of a surrogate pair."""
    if not isinstance(value, str):
        raise Refused(f"{name} is {_shown(value)}; give a string", field=name)
    size = len(value)
    if not value.isascii() and size <= MAX_TEXT_BYTES:
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            half = f"U+{ord(value[error.start]):04X}"
            raise Refused(
                f"{name} has half a surrogate pair ({half} at {error.start}); it is no text", field=name
            ) from None
    if size > MAX_TEXT_BYTES:
        raise Refused(
            f"{name} has {size} bytes; at most {MAX_TEXT_BYTES} are taken", field=name, kind="too_large"
        )


def _flavour(value: Any, prefix: str, rules: Rules, *, code: str) -> str:
    if value == AUTO or value is None:
        return rules.choose(code)
    if not isinstance(value, str) or value not in rules.flavours:
        known = ", ".join(rules.flavours)
        raise Refused(
            f"{prefix}flavour is {_shown(value)}; there are {known}",
            field=prefix + "flavour",
            kind="unknown_flavour",
        )
    return value


def _limits(value: Any, prefix: str, rules: Rules) -> Limits:
    if value is None:
        return rules.default_limits
    where = prefix + "limits"
    _object(value, where, LIMIT_FIELDS)
    try:
        limits = replace(rules.default_limits, **value)
    except (TypeError, ValueError, OverflowError):
        raise _faulty_limit(value, where, rules) from None
    if limits.wall_s > rules.max_wall_s or limits.memory_bytes > rules.max_memory_bytes:
        raise _faulty_limit(value, where, rules)
    return limits


def _faulty_limit(values: Mapping[str, Any], where: str, rules: Rules) -> Refused:
    """The first that is none, or beyond what this service takes."""
    for name, value in values.items():
        low, high = rules.bounds_of(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            fault = "give a number"
        elif not low <= value <= high:
            fault = f"this service takes {low} to {high}"
        elif isinstance(value, float) and name != "wall_s":
            fault = "give a whole number"
        else:
            continue
        return Refused(f"{where}.{name} is {_shown(value)}; {fault}", field=f"{where}.{name}")
    raise AssertionError("limits that are each right are right together")


def _seed(value: Any, prefix: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise Refused(
            f"{prefix}seed is {_shown(value)}; give a whole number in [0, 2**64)", field=prefix + "seed"
        )
    return value


def _deadline(fields: Mapping[str, Any]) -> float | None:
    value = fields.get("deadline_s")
    return None if value is None else _positive(value, "deadline_s", MAX_DEADLINE_S)


def _positive(value: Any, name: str, high: float) -> float:
    if type(value) not in (int, float) or not 0 < value <= high or not math.isfinite(value):
        raise Refused(f"{name} is {_shown(value)}; give a number of seconds in (0, {high:g}]", field=name)
    return float(value)


def _shown(value: Any) -> str:
    """A value as a message can carry it: short, whatever it is. Containers are named, not printed: they can
    be nested beyond what repr takes."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return ascii(value[:60]) + ("..." if len(value) > 60 else "")
    if value is None:
        return "missing"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a huge number"
    return repr(value)
