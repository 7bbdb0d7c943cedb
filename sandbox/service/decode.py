"""Bytes of a request body to typed calls. Pure: no I/O, no clock.

Whatever the bytes are, these functions return calls or raise `Refused` naming the field, and nothing else.
In a batch each item is either an `ExecRequest` or its own `Refused`: one bad item does not harm the others.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar, cast

import msgspec

from rocstar.sandbox import files as program_files
from rocstar.sandbox.service.errors import Refused, TooLarge, Unparsable
from rocstar.sandbox.service.mistakes import Loc, Mistake, mistakes
from rocstar.sandbox.service.models import (
    MAX_JSON_FILES_BYTES,
    BodyModel,
    CellBody,
    RequestBody,
    models_of,
)
from rocstar.sandbox.service.packed import Chosen, PackedBytes, packed, places
from rocstar.sandbox.service.rules import AUTO, Rules
from rocstar.sandbox.types import MAX_TEXT_BYTES, ExecRequest, Limits

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCall:
    request: ExecRequest
    deadline_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCall:
    """`runnable`, `refused`: the places of each kind. `refusals`: what is answered to each that was refused,
    as JSON, which is made where the body is decoded."""

    requests: Sequence[ExecRequest | Refused]
    runnable: Sequence[int]
    refused: Sequence[int]
    refusals: Sequence[bytes]
    deadline_s: float | None
    stream: bool

    def sent(self) -> Sequence[ExecRequest]:
        """Those that can run."""
        if not self.refused:
            return cast(Sequence[ExecRequest], self.requests)
        return Chosen(self.runnable, lambda index: cast(ExecRequest, self.requests[index]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCall:
    flavour: str
    limits: Limits
    seed: int | None


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


def decode_run(body: bytes, rules: Rules, owner: str = "") -> RunCall:
    run = _read(body, models_of(rules).run)
    request = _request(run, "", rules, owner)
    if run.files or run.fetch_files or run.displays:
        check_files(run.files, run.fetch_files)
        request = replace(request, files=run.files, fetch=tuple(run.fetch_files), displays=run.displays)
    return RunCall(request=request, deadline_s=run.deadline_s)


def check_files(files: Mapping[str, bytes], fetch: Sequence[str]) -> None:
    """Raises Refused for names that no file can have, and for more than one text can carry."""
    if not files and not fetch:
        return
    try:
        program_files.check(files)
        program_files.check_fetch(fetch)
    except ValueError as error:
        raise Refused(
            str(error), field="files" if str(error).startswith("files") else "fetch_files"
        ) from None
    total = sum(map(len, files.values()))
    if total > MAX_JSON_FILES_BYTES:
        message = f"files has {total} bytes; at most {MAX_JSON_FILES_BYTES} are taken in one request"
        raise TooLarge(f"{message}, more by PUT /v1/sessions/ID/files/NAME", field="files")


def decode_batch(body: bytes, rules: Rules, owner: str = "") -> BatchCall:
    models = models_of(rules)
    batch = models.batch.decode(body)
    if batch is not None:
        items = [_item(item, i, rules, owner) for i, item in enumerate(batch.requests)]
    else:
        batch = _fitted(parse_json(body), models.batch_of_any)
        items = [_item_of(item, i, rules, owner) for i, item in enumerate(batch.requests)]
    return BatchCall(
        requests=packed(items),
        runnable=places(items, lambda item: isinstance(item, ExecRequest)),
        refused=places(items, lambda item: isinstance(item, Refused)),
        refusals=PackedBytes([item.outcome() for item in items if isinstance(item, Refused)]),
        deadline_s=batch.deadline_s,
        stream=batch.stream,
    )


def _item_of(value: Any, index: int, rules: Rules, owner: str) -> ExecRequest | Refused:
    """A call of a batch in which at least one is wrong."""
    try:
        item = _fitted(value, models_of(rules).request, ("requests", index))
    except Refused as refusal:
        return kept(refusal)
    return _item(item, index, rules, owner)


def _item(item: RequestBody, index: int, rules: Rules, owner: str) -> ExecRequest | Refused:
    try:
        return _request(item, f"requests[{index}].", rules, owner)
    except Refused as refusal:
        return kept(refusal)


def kept(refusal: Refused) -> Refused:
    """One of thousands, perhaps: without the frames that it came through, which it would keep, and which the
    collector would go through again and again while nobody else runs."""
    refusal.__context__ = None
    return refusal.with_traceback(None)


def decode_session(body: bytes, rules: Rules) -> SessionCall:
    session = _read(body or b"{}", models_of(rules).session)
    return SessionCall(
        flavour=AUTO if session.flavour in (None, AUTO) else _flavour(session.flavour, "", rules),
        limits=_limits(session.limits, rules),
        seed=_seed(session.seed, ""),
    )


def decode_cell(body: bytes, rules: Rules) -> CellBody:
    cell = _read(body, models_of(rules).cell)
    _check_code(cell.code, "")
    if cell.files or cell.fetch_files:
        check_files(cell.files, cell.fetch_files)
    return cell


def _read(body: bytes, model: BodyModel[S]) -> S:
    found = model.decode(body)
    return _fitted(parse_json(body), model.type) if found is None else found


def _fitted(value: Any, model: type[S], loc: Loc = ()) -> S:
    """Raises Refused for the first mistake."""
    try:
        return msgspec.convert(value, model)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: half a pair in a name
        for mistake in mistakes(value, model, loc):
            raise _refusal(mistake) from None
        raise Refused(f"the body does not fit: {error}", field="body") from None


def _refusal(mistake: Mistake) -> Refused:
    path = ""
    for part in mistake.loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    path = ascii(path)[1:-1][:120]
    if mistake.kind == "extra_forbidden":
        path = path or "''"
        return Refused(f"{path} is no field of this request; {mistake.fix}", field=path)
    if mistake.kind in ("too_short", "too_long"):
        number = mistake.ctx["actual_length"]
        refused = TooLarge if mistake.kind == "too_long" else Refused
        what = "calls" if path == "requests" else "entries"
        return refused(f"{path} has {number} {what}; {mistake.fix}", field=path)
    if mistake.kind == "value_error":
        return Refused(f"{path}: {mistake.msg}; {mistake.fix}", field=path)
    shown = "missing" if mistake.kind == "missing" else _shown(mistake.value)
    kind = "unknown_flavour" if mistake.loc[-1:] == ("flavour",) else ""
    return Refused(f"{path or 'the body'} is {shown}; {mistake.fix}", field=path or "body", kind=kind)


def _request(body: RequestBody, prefix: str, rules: Rules, owner: str) -> ExecRequest:
    """What no model can say: texts that are no program, and which flavour suits one."""
    code, stdin, seed = body.code, body.stdin or "", body.seed
    _check_code(code, prefix)
    if stdin:
        check_text(stdin, prefix + "stdin")
    return ExecRequest(
        code=code,
        stdin=stdin,
        limits=rules.default_limits if body.limits is None else _limits(body.limits, rules),
        flavour=_flavour(body.flavour, code, rules),
        seed=None if seed is None else _seed(seed, prefix),
        owner=owner,
    )


def _check_code(code: str, prefix: str) -> None:
    check_text(code, prefix + "code")
    if "\0" in code:
        message = f"{prefix}code has a NUL at {code.index(chr(0))}; Python reads none"
        raise Refused(message, field=prefix + "code")


def check_text(text: str, name: str) -> None:
    """Refuses what no program can be given: too long, or half of a surrogate pair."""
    size = len(text)
    if not text.isascii() and size <= MAX_TEXT_BYTES:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            half = f"U+{ord(text[error.start]):04X}"
            raise Refused(
                f"{name} has half a surrogate pair ({half} at {error.start}); it is no text", field=name
            ) from None
    if size > MAX_TEXT_BYTES:
        raise Refused(
            f"{name} has {size} bytes; at most {MAX_TEXT_BYTES} are taken", field=name, kind="too_large"
        )


def _flavour(name: str | None, code: str, rules: Rules) -> str:
    return rules.choose(code) if name is None or name == AUTO else name


def _limits(body: msgspec.Struct | None, rules: Rules) -> Limits:
    return rules.default_limits if body is None else Limits(**msgspec.structs.asdict(body))


def _seed(seed: int | None, prefix: str) -> int | None:
    if seed is not None and seed >= 1 << 64:
        shown = _shown(seed)
        raise Refused(f"{prefix}seed is {shown}; give a whole number in [0, 2**64)", field=prefix + "seed")
    return seed


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
